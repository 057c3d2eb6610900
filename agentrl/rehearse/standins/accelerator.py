"""The CPU as slime's accelerator, by slime's own `register_accelerator`. slime/utils/accelerator knows CUDA and MUSA.

`SLIME_ACCELERATOR=cpu` selects the CPU.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from agentrl._util.memory import free_ram
from agentrl.rehearse.standins.imports import after


@after("slime.utils.accelerator")
def register(module: Any) -> None:
    """Let slime's functions of slime/utils/accelerator/__init__.py act on the CPU."""
    module.register_accelerator("cpu", lambda: cpu_class()(), is_available=lambda: True)


def cpu_class() -> Any:
    """`Cpu` as a subclass of slime's TorchAccelerator. Imports slime."""
    from slime.utils.accelerator.torch_accelerator import TorchAccelerator

    return type("CpuAccelerator", (Cpu, TorchAccelerator), {})


class Cpu:
    """One CPU, with gloo for the messages between processes."""

    name = device_type = "cpu"
    communication_backend_name = "gloo"

    def _module(self) -> Any:
        import torch

        return torch.cpu

    def is_available(self) -> bool:
        return True

    def device_name(self, index: Any = None) -> str:
        return "cpu"

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, index: Any) -> None:
        """There is one device."""

    def synchronize(self, device: Any = None) -> None:
        """A CPU computes at once."""

    def empty_cache(self) -> None:
        """torch keeps no cache of the CPU's memory."""

    def ipc_collect(self) -> None:
        """Tensors go by value."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return free_ram(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def memory_allocated(self, device: Any = None) -> int:
        import psutil

        return int(psutil.Process().memory_info().rss)

    memory_reserved = memory_allocated

    def get_device_properties(self, device: Any = None) -> Any:
        return SimpleNamespace(name="cpu", uuid="cpu")

    def distributed_device_id(self, index: Any = None) -> None:
        """gloo takes no device."""

    def resolve_visible_device_id(self, physical_device_id: Any) -> int:
        """Return Ray's number of the logical GPU: CUDA_VISIBLE_DEVICES has no meaning here."""
        return int(float(physical_device_id))

    def supports(self, capability: str) -> bool:
        return capability in {"requires_cpu_initialization", "bf16", "amp", "rng"}

    def manual_seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> Any:
        import torch

        return torch.get_rng_state()

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        import torch

        torch.set_rng_state(state)
