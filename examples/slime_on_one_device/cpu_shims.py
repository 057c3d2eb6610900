"""What slime and Megatron-Core need to take a CPU for their GPU. It cannot be imported in a run on a GPU.

- the CPU as slime's accelerator, which slime lets anybody register (`slime/utils/accelerator`)
- the CPU as Megatron's current device, with `device="cuda"` read as the CPU while training
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
    """Megatron writes `device="cuda"` and compares `tensor.type()` with CUDA's names; both mean the CPU here."""

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
    """megatron.training wraps a model on a side stream of the GPU."""
    return mock.patch.multiple(
        torch.cuda, Stream=torch.cpu.Stream, stream=torch.cpu.stream, current_stream=torch.cpu.current_stream
    )


def register_accelerator() -> None:
    accelerator = importlib.import_module("slime.utils.accelerator")
    accelerator.register_accelerator("cpu", _cpu_accelerator, is_available=lambda: True)


def _cpu_accelerator() -> Any:
    base = importlib.import_module("slime.utils.accelerator.torch_accelerator").TorchAccelerator

    class CpuAccelerator(base):  # type: ignore[misc, valid-type]
        """torch.cpu as slime's accelerator: it has the CUDA-like calls, but its device has no number."""

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
