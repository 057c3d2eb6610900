"""The device of a run. slime's environment variable SLIME_ACCELERATOR has its name, for every process of the run.

On CUDA, slime and Megatron run unchanged. On a CPU they need `cpu_shims`, which only this module imports, and only on a
CPU.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

VARIABLE = "SLIME_ACCELERATOR"
SEED = 1234
"""The seed of random numbers on the GPU. None are drawn: there is no dropout, and the weights are loaded."""


def choose(asked: str) -> str:
    """Set the device of this process and its child processes: cpu, cuda, or auto (cuda if torch has a GPU).

    Raises ValueError for cuda if torch has no GPU.
    """
    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        raise ValueError("--device cuda: torch sees no GPU; use --device cpu")
    os.environ[VARIABLE] = ("cuda" if found else "cpu") if asked == "auto" else asked
    return name()


def name() -> str:
    """The device's name, cpu or cuda, as `choose` has set it."""
    return os.environ[VARIABLE]


def here() -> torch.device:
    """The torch device of this process."""
    return torch.device("cpu") if name() == "cpu" else torch.device("cuda", torch.cuda.current_device())


def join(rank: int, world: int, port: int) -> None:
    """Join the group of `world` data-parallel processes, and set up Megatron's process groups."""
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
    """The back ends of torch.distributed: gloo for data in the CPU's memory, NCCL for gradients on a GPU.

    NCCL refuses two processes on the same GPU. These use gloo for both.
    """
    nccl = name() == "cuda" and world <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if nccl else "gloo"


def training() -> AbstractContextManager[Any]:
    """The context in which code of Megatron and slime must run."""
    return nullcontext() if name() == "cuda" else _shims().CudaMeansCpu()


def building() -> AbstractContextManager[Any]:
    """The context in which megatron.training must build a model, inside of `training()`."""
    return nullcontext() if name() == "cuda" else _shims().cuda_streams_of_the_cpu()


def register() -> None:
    """Register the device with slime, if slime does not know the device."""
    if name() == "cpu":
        _shims().register_accelerator()


def peak_gib() -> float:
    """The peak of memory so far in GiB: of tensors on the GPU, or of this process on a CPU."""
    if name() == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _shims() -> Any:
    import cpu_shims

    return cpu_shims
