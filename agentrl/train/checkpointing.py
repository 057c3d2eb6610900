"""Gradient checkpointing: a layer stores only its inputs, and the backward pass computes the other activations again.

transformers' own gradient checkpointing works in train mode only. In train mode models have dropout, skipped layers,
and noise in routers: the outputs differ from the sampled model's. So the layers are wrapped here, in eval mode.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.errors import ConfigError
from agentrl.models.adapter import without_adapter

log = logging.getLogger("agentrl")

CHECKPOINTING_FROM = 100_000_000
"""The number of parameters from which gradient checkpointing is on by default. Smaller models save little memory, and
the passes would be slower."""


def wants_checkpointing(setting: bool | None, parameters: int) -> bool:
    """Whether a model of this size checkpoints layers. `setting` is `gradient_checkpointing`."""
    return parameters >= CHECKPOINTING_FROM if setting is None else setting


def layers_to_checkpoint(model: Any, setting: bool | None) -> list[Any]:
    """The layers to checkpoint; empty without checkpointing.

    If checkpointing is wanted and the model has no such layers, a log line says so. Raises ConfigError if `setting`
    asks for checkpointing then.
    """
    if not wants_checkpointing(setting, sum(parameter.numel() for parameter in model.parameters())):
        return []
    layers = layers_of(model)
    if not layers:
        why = f"{type(without_adapter(model)).__name__} has no layers that transformers can checkpoint"
        if setting:
            raise ConfigError(f"gradient_checkpointing: {why}; leave it out, or set it to false")
        log.warning("%s: it is trained without gradient checkpointing", why)
    return layers


def layers_of(model: Any) -> list[Any]:
    """The model's outermost layers."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    inner = {id(module) for layer in layers for module in layer.modules() if module is not layer}
    return [layer for layer in layers if id(layer) not in inner]


@contextmanager
def checkpointing(layers: list[Any]) -> Iterator[None]:
    """While the context is open, these layers store few activations. An engine that samples from the layers must be
    idle."""
    before = [(layer, vars(layer).get("forward")) for layer in layers]
    for layer in layers:
        layer.forward = partial(_checkpointed, layer.forward)
    try:
        yield
    finally:
        for layer, forward in before:
            del layer.forward
            if forward is not None:
                layer.forward = forward


def _checkpointed(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
