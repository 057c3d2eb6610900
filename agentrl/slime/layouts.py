"""How models are split over GPUs in training and generation.

The layouts are those of slime's own scripts (scripts/run-*.sh at 624b824a8). A size for which slime has no script takes
the layout of the next larger one that has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.errors import ConfigError

_ROOM_GB = 60.0
"""Of a GPU's 80 GB, what weights, gradients and optimizer may take; the rest is for activations and logits."""
_BYTES, _OFFLOADED_BYTES = 18, 6
"""A parameter's bytes in training: BF16 weight 2, FP32 gradient 4, FP32 master weight and Adam's moments 12, the latter
three on the CPU where the optimizer is offloaded."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is split over GPUs."""

    billions: float
    tensor: int = 1
    context: int = 1
    expert: int = 1
    engine: int = 1
    """GPUs of one SGLang engine."""
    tokens: int = 9216
    """--max-tokens-per-gpu"""


_SMALL = Layout(0.5)  # run-qwen2.5-0.5B-reproducibility.sh
_4B = Layout(4, tensor=2, engine=2)  # run-qwen3-4B.sh
_9B = Layout(9, tensor=2, context=2, engine=2, tokens=4608)  # run-glm4-9B.sh
_32B = Layout(32, tensor=8, engine=8, tokens=20480)  # run-qwen3-32B.sh
LAYOUTS: Mapping[str, Layout] = {
    "qwen2.5-0.5B": _SMALL,
    "qwen3-0.6B": replace(_SMALL, billions=0.6),
    "qwen2.5-1.5B": replace(_4B, billions=1.5),
    "qwen3-1.7B": replace(_4B, billions=1.7),
    "qwen2.5-3B": replace(_4B, billions=3),
    "qwen3-4B": _4B,
    "qwen3-4B-Instruct-2507": _4B,
    "qwen2.5-7B": replace(_9B, billions=7.6),
    "qwen3-8B": replace(_9B, billions=8),
    "glm4-9B": _9B,
    "qwen3-14B": replace(_32B, billions=14),
    "qwen3-32B": _32B,
    "qwen3-30B-A3B": Layout(30, tensor=4, expert=8, engine=8, tokens=20480),  # run-qwen3-30B-A3B.sh
}
"""By the name of slime's scripts/models/NAME.sh."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch script is written for."""

    model: str
    """A key of LAYOUTS."""
    env: str
    gpus: int = 8
    """Of each node."""
    nodes: int = 1
    fp8: bool = False
    fully_async: bool = False

    @property
    def trainer(self) -> tuple[int, int]:
        """Nodes and GPUs of each that train. Fully-async gives the other half to generation."""
        if not self.fully_async:
            return self.nodes, self.gpus
        return (self.nodes // 2, self.gpus) if self.nodes > 1 else (1, self.gpus // 2)


def model_name(given: str) -> str:
    """The key of LAYOUTS for a model's name or folder, such as Qwen/Qwen3-4B. Raises ConfigError."""
    name = Path(given).name.lower()
    for key in sorted(LAYOUTS, key=len, reverse=True):
        if re.fullmatch(rf"{re.escape(key.lower())}(-instruct|-fp8|-0414|-chat)*", name):
            return key
    raise ConfigError(
        f"--model {given}: no layout for it; take the nearest of {', '.join(LAYOUTS)}, and adapt what it writes"
    )


def fitted(launch: Launch) -> tuple[Layout, bool]:
    """The model's layout on these GPUs, and whether its optimizer goes to the CPU. Raises ConfigError."""
    if launch.gpus < 1 or launch.nodes < 1:
        raise ConfigError(f"--gpus {launch.gpus} --nodes {launch.nodes}: both must be at least 1")
    nodes, each = launch.trainer
    gpus = nodes * each
    if not gpus:
        raise ConfigError("--fully-async trains and generates on different GPUs: it needs at least two")
    layout = LAYOUTS[launch.model]
    if layout.billions * _OFFLOADED_BYTES / gpus > _ROOM_GB:
        least = -(-layout.billions * _OFFLOADED_BYTES // _ROOM_GB)
        raise ConfigError(f"{launch.model} is not trained on {gpus} GPU{'s' if gpus > 1 else ''}: it needs {least:g}")
    tensor = min(layout.tensor, each)
    parallel = layout.context if tensor * layout.context <= gpus else 1
    engine = min(layout.engine, launch.gpus * launch.nodes - gpus if launch.fully_async else gpus)
    if gpus % (tensor * parallel) or launch.gpus % engine:
        raise ConfigError(
            f"{launch.model} is split over {tensor * parallel} GPUs to train and {engine} to generate, which do not "
            f"divide {gpus}; give a power of two"
        )
    return (
        replace(
            layout,
            tensor=tensor,
            context=parallel,
            expert=min(layout.expert, gpus),
            engine=engine,
            tokens=layout.tokens * layout.context // parallel,
        ),
        layout.billions * _BYTES / gpus > _ROOM_GB,
    )
