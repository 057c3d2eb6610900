"""Stands in for SGLang's compiled kernels where there are none: `import sgl_kernel` works, and calling anything raises.

SGLang imports names of it on every platform, and calls none of them on a CPU. Installed as sgl_kernel/__init__.py by
.ci/sglang.sh.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{self._name} is not there: this SGLang runs without compiled kernels")

    def __getattr__(self, name: str) -> _Missing:
        return _missing(name, f"{self._name}.{name}")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        return _missing(name, name)


class _Submodules:
    """Finds every `sgl_kernel.anything`."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _missing(name: str, path: str) -> _Missing:
    if name.startswith("__"):  # who looks for these wants to know that they are not there
        raise AttributeError(name)
    return _Missing(path)


def __getattr__(name: str) -> _Missing:
    return _missing(name, name)


sys.meta_path.append(_Submodules())


def _name_missing_ops() -> None:
    """SGLang's image processors import these operators from torch by name."""
    import torch

    for name in (
        "fused_gdn_gating_cpu",
        "fused_moe_router_cpu",
        "fused_qk_gemma_rmsnorm_cpu",
        "fused_qk_gemma_rmsnorm_with_gate_cpu",
        "fused_qkvzba_split_reshape_cat_contiguous_cpu",
        "fused_sigmoid_mul_cpu",
    ):
        setattr(torch.ops.sgl_kernel, name, _Missing(name))


_name_missing_ops()
