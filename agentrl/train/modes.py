"""How a model is set up to be trained: no dropout, train mode, and activations that the backward pass makes again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from agentrl.errors import ConfigError
from agentrl.train.log_probs import alike, probe, vocabulary

log = logging.getLogger("agentrl")

CHECKPOINTING_FROM = 100_000_000
"""Parameters from which gradient checkpointing is on by default. Below, it costs more time than memory is worth."""


def wants_checkpointing(setting: bool | None, parameters: int) -> bool:
    """Whether a model with so many parameters keeps few activations. `setting` is `gradient_checkpointing`."""
    return parameters >= CHECKPOINTING_FROM if setting is None else setting


def prepare(model: Any, setting: bool | None) -> bool:
    """Turn dropout off for good, and gradient checkpointing on if it is wanted. The model is in eval mode then.

    Return whether the model may be trained in train mode: checkpointing works in no other. A model that computes
    something else in train mode, such as noise in a router, is trained in eval mode. Raises ConfigError for such a
    model if `setting` is true.
    """
    whole = model.eval().get_base_model() if hasattr(model, "get_base_model") else model.eval()
    _turn_dropout_off(model)
    if vocabulary(model) and not _same_in_train_mode(model):
        _refuse(setting, f"{type(whole).__name__} computes something else in train mode, even without dropout")
        return False
    if wants_checkpointing(setting, sum(parameter.numel() for parameter in model.parameters())):
        if not getattr(whole, "supports_gradient_checkpointing", False):
            _refuse(setting, f"{type(whole).__name__} has no gradient checkpointing")
            return True
        _checkpoint(whole)
    return True


def _checkpoint(model: Any) -> None:
    """Switch checkpointing on under its name of today, or under the one that it had in transformers 4."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@contextmanager
def train_mode(model: Any) -> Iterator[None]:
    """Train mode inside, eval mode after: an engine samples from the same module."""
    model.train()
    try:
        yield
    finally:
        model.eval()


def _turn_dropout_off(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@torch.no_grad()
def _same_in_train_mode(model: Any) -> bool:
    """Whether a few tokens have the same logits in both modes. No random number of the process is used up."""
    ids = probe(model)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        before = model(input_ids=ids, use_cache=False).logits.float()
        with train_mode(model):
            after = model(input_ids=ids, use_cache=False).logits.float()
    return alike(before, after, model.dtype)


def _refuse(setting: bool | None, why: str) -> None:
    if setting:
        raise ConfigError(f"gradient_checkpointing: {why}; leave it out, or set it to false")
    log.warning("%s: it is trained without gradient checkpointing", why)
