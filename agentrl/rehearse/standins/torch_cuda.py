"""torch.cuda for Megatron's processes: Megatron calls its functions by name, and passes `device="cuda"` to torch.

`replace` changes functions of torch.cuda before megatron.core is imported. `on_cpu` is active while the methods of
slime's training actor run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from agentrl.rehearse.standins.imports import after, before

_NOTHING = [
    "set_device",
    "synchronize",
    "empty_cache",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "manual_seed",
    "manual_seed_all",
    "ipc_collect",
]
_ZERO = ["memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"]
ACTOR_METHODS = ("init", "train", "save_model", "update_weights", "sleep", "wake_up", "clear_memory")
"""The methods of slime's MegatronTrainRayActor that compute."""


class Event:
    """torch.cuda.Event on a device that computes at once."""

    def __init__(self, *flags: Any, **options: Any) -> None: ...

    def record(self, *stream: Any) -> None: ...

    def wait(self, *stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class Stream:
    """torch.cuda.Stream on a device that computes at once."""

    def __init__(self, *device: Any, **options: Any) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


@before("megatron.core")
def replace() -> None:
    """Let the functions of torch.cuda that Megatron calls act on the CPU."""
    import torch
    import torch._dynamo  # builds a table of torch's functions once, and refuses replaced functions

    cuda: Any = torch.cuda
    for name in _NOTHING:
        setattr(cuda, name, lambda *_, **__: None)
    for name in _ZERO:
        setattr(cuda, name, lambda *_, **__: 0)
    cpu = torch.device("cpu")
    cuda.current_device = lambda: cpu
    for module in (cuda, cuda.random):  # Megatron's recomputation of activations calls the latter
        module.get_rng_state = lambda *_, **__: torch.get_rng_state()
        module.set_rng_state = lambda *_, **__: None
    cuda.memory_stats = lambda *_, **__: {}
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_capability = lambda *_, **__: (9, 0)
    cuda.get_device_properties = lambda *_, **__: SimpleNamespace(
        name="cpu", major=9, minor=0, total_memory=1 << 34, multi_processor_count=1
    )
    cuda.Event, cuda.Stream, stream = Event, Stream, Stream()
    cuda.stream = lambda *_: nullcontext()
    cuda.current_stream = cuda.default_stream = lambda *_: stream
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_, **__: None
    torch._C._host_emptyCache = lambda: None  # slime/utils/memory_utils.py


def on_cpu() -> Any:
    """A context manager in which torch puts tensors on the CPU where the caller asks for CUDA or for pinned memory.

    slime/utils/tensor_backper.py asks for pinned memory; Megatron asks for CUDA. Megatron's optimiser accepts only
    parameters whose `type()` is one of torch.cuda.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
                return args[0]
            if func is torch.Tensor.to and len(args) > 1 and str(args[1]).startswith("cuda"):
                args = (args[0], "cpu", *args[2:])
            result = func(*args, **kwargs)
            if func is torch.Tensor.type and isinstance(result, str):
                return result.replace("torch.", "torch.cuda.")
            return result

    return OnCpu()


@after("slime.backends.megatron_utils.actor", "miles.backends.megatron_utils.actor")
def wrap_actor(module: Any) -> None:
    """Run the methods of the training actor with `on_cpu`, on as many threads as OMP_NUM_THREADS says."""
    actor = module.MegatronTrainRayActor
    for name in ACTOR_METHODS:
        if hasattr(actor, name):
            setattr(actor, name, _within(getattr(actor, name)))


def _within(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        with on_cpu():
            return function(*args, **kwargs)

    return wrapped
