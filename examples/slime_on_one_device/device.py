"""The device of a run. slime's own variable SLIME_ACCELERATOR names it, so that every process of the run knows it.

On CUDA, slime and Megatron run as they are. On a CPU they have to be told that it is their device: `cpu_shims`, which
is imported here alone, and only on a CPU.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

VARIABLE = "SLIME_ACCELERATOR"
SEED = 1234
"""Of random numbers on the GPU. Nothing here draws any: there is no dropout, and the weights are given."""


def choose(asked: str) -> str:
    """Fix the device of this process and of those it starts: cpu, cuda, or auto for cuda where there is one.

    Raises ValueError for cuda where torch sees no GPU.
    """
    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        raise ValueError("--device cuda: torch sees no GPU; use --device cpu")
    os.environ[VARIABLE] = ("cuda" if found else "cpu") if asked == "auto" else asked
    return name()


def name() -> str:
    """cpu or cuda, as `choose` fixed it."""
    return os.environ[VARIABLE]


def here() -> torch.device:
    """This process's device."""
    return torch.device("cpu") if name() == "cpu" else torch.device("cuda", torch.cuda.current_device())


def join(rank: int, world: int, port: int) -> None:
    """Join `world` data-parallel processes, and make Megatron's groups of them."""
    from megatron.core import parallel_state, tensor_parallel

    if name() == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    else:
        _shims().make_the_cpu_the_current_device()
    dist.init_process_group(backend(world), f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    parallel_state.initialize_model_parallel()
    if name() == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(SEED)
    else:
        # Megatron keeps random states of the GPU, for dropout and initial weights; this tracker of its own keeps none.
        tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)


def backend(world: int) -> str:
    """gloo carries the shares of a rollout, which lie in the CPU's memory, and NCCL the gradients of a GPU.

    NCCL refuses two processes on one GPU. They take gloo for both.
    """
    nccl = name() == "cuda" and world <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if nccl else "gloo"


def training() -> AbstractContextManager[Any]:
    """What code of Megatron and slime must run in."""
    return nullcontext() if name() == "cuda" else _shims().CudaMeansCpu()


def building() -> AbstractContextManager[Any]:
    """What megatron.training must build a model in, inside `training()`."""
    return nullcontext() if name() == "cuda" else _shims().cuda_streams_of_the_cpu()


def register() -> None:
    """Tell slime of the device, where it does not know it by itself."""
    if name() == "cpu":
        _shims().register_accelerator()


def peak_gib() -> float:
    """The most memory so far: of tensors on the GPU, or of this process on a CPU. In GiB."""
    if name() == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _shims() -> Any:
    import cpu_shims

    return cpu_shims
