"""Faster arithmetic on a GPU: liger-kernel's norm, rotary and SwiGLU, and TF32."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from agentrl.models.adapter import without_adapter
from agentrl.train.log_probs import alike, probe

log = logging.getLogger("agentrl")


def use_fused_kernels(model: Any, device: torch.device) -> bool:
    """Give a model on a GPU the fused kernels of liger-kernel for the architecture, if liger-kernel is installed.

    The logits stay the same except for rounding. If the logits change, or a kernel does not work here, the model stays
    unchanged. An engine that samples from the module uses the kernels, too. Returns whether the kernels are used.
    """
    if device.type != "cuda" or (apply := _liger()) is None:
        return False
    return try_kernels(model, apply)


def _liger() -> Callable[..., None] | None:
    try:
        patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
    except ImportError:
        return None
    apply: Callable[..., None] = patches._apply_liger_kernel_to_instance
    # Log-probs of the trained tokens alone are computed here (train/log_probs.py), so the heads stay.
    return partial(apply, cross_entropy=False, fused_linear_cross_entropy=False)


@torch.no_grad()
def try_kernels(model: Any, apply: Callable[..., None]) -> bool:
    """Call `apply(model=...)`, which changes the model. A change that has no effect, or changes the logits, is undone.
    Returns whether the change stays."""
    whole, ids = without_adapter(model), probe(model)
    modules, code = _attributes(whole), sys.modules[type(whole).__module__]
    names = dict(vars(code))
    expected = model(input_ids=ids, use_cache=False).logits.float()
    try:
        apply(model=whole)
        good = alike(expected, model(input_ids=ids, use_cache=False).logits.float(), model.dtype)
    except Exception:  # the boundary of liger-kernel and of Triton, which compiles at the first call
        log.debug("liger-kernel does not work for %s", type(whole).__name__, exc_info=True)
        good = False
    changed = any(vars(module).keys() != before.keys() for module, before in modules)
    if good and changed:
        log.info("%s uses liger-kernel's norm, rotary and SwiGLU", type(whole).__name__)
        return True
    if not good:
        log.warning("liger-kernel is not used: %s computes something else with it, or nothing", type(whole).__name__)
    for module, before in modules:
        vars(module).clear()
        vars(module).update(before)
    vars(code).update(names)
    return False


def _attributes(model: Any) -> list[tuple[Any, dict[str, Any]]]:
    return [(module, dict(vars(module))) for module in model.modules()]


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """While the context is open, products of float32 matrices may use TF32 on a GPU."""
    backend = torch.backends.cuda.matmul
    before = backend.allow_tf32
    backend.allow_tf32 = before or allowed
    try:
        yield
    finally:
        backend.allow_tf32 = before
