"""Let slime and Megatron-Core use a CPU in place of a GPU. The module cannot be imported in a run on a GPU.

- The CPU is registered as slime's accelerator (`slime/utils/accelerator`).
- The CPU is Megatron's current device; during training, `device="cuda"` means the CPU.
"""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

import device
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if device.name() != "cpu":
    raise ImportError(f"cpu_shims fakes a GPU and is for --device cpu; this run is on {device.name()}")


def make_the_cpu_the_current_device() -> None:
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]


class CudaMeansCpu(TorchFunctionMode):
    """Within this mode, `device="cuda"` and CUDA's names of `tensor.type()`, which Megatron uses, mean the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


def cuda_streams_of_the_cpu() -> Any:
    """Replace CUDA's streams on a CPU: megatron.training wraps a model on a second stream of the GPU."""
    return mock.patch.multiple(
        torch.cuda, Stream=torch.cpu.Stream, stream=torch.cpu.stream, current_stream=torch.cpu.current_stream
    )


def register_accelerator() -> None:
    accelerator = importlib.import_module("slime.utils.accelerator")
    accelerator.register_accelerator("cpu", _cpu_accelerator, is_available=lambda: True)


def _cpu_accelerator() -> Any:
    base = importlib.import_module("slime.utils.accelerator.torch_accelerator").TorchAccelerator

    class CpuAccelerator(base):  # type: ignore[misc, valid-type]
        """torch.cpu as slime's accelerator. It has the same calls as torch.cuda, but its device has no index."""

        name = device_type = "cpu"
        communication_backend_name = "gloo"

        def _module(self) -> Any:
            return torch.cpu

        def current_device(self) -> str:
            return "cpu"

        def device_name(self, index: Any = None) -> str:
            return "cpu"

        def empty_cache(self) -> None:
            pass

    return CpuAccelerator()
