"""How models are split over GPUs in training and generation.

The layouts come from slime's own scripts (scripts/run-*.sh at 624b824a8). A size without a script takes the layout of
the next larger size that has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentrl.errors import ConfigError
from agentrl.slime.models import MODELS, Layout, Model
from agentrl.slime.recipes import Recipe

_ROOM_GB = 60.0
"""Weights, gradients and optimizer may take this much of a GPU's 80 GB. The rest is for activations and logits."""
_ENGINE_ROOM_GB = 45.0
"""An engine's weights may take this much of its 56 GB on a GPU. The rest is for its KV cache."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings of a launch script."""

    model: str
    """A key of MODELS."""
    env: str
    gpus: int = 8
    """GPUs of each node."""
    nodes: int = 1
    fp8: bool = False
    fully_async: bool = False
    folder: str | None = None
    """The model's folder, if it is known."""
    rotary_base: float | None = None
    """The model's rotary base, if it differs from slime's model file."""
    recipe: Recipe | None = None
    estimator: str = "grpo"

    @property
    def trainer(self) -> tuple[int, int]:
        """The number of nodes that train, and of GPUs on each. Fully-async gives the other half to generation."""
        if not self.fully_async:
            return self.nodes, self.gpus
        return (self.nodes // 2, self.gpus) if self.nodes > 1 else (1, self.gpus // 2)


def layout_for(launch: Launch) -> tuple[Layout, bool]:
    """Fit the model's layout to the GPUs. Also returns whether its optimizer goes to the CPU. Raises ConfigError."""
    if launch.gpus < 1 or launch.nodes < 1:
        raise ConfigError(f"--gpus {launch.gpus} --nodes {launch.nodes}: both must be at least 1")
    nodes, each = launch.trainer
    gpus = nodes * each
    if not gpus:
        raise ConfigError("--fully-async trains and generates on different GPUs: it needs at least two")
    model = MODELS[launch.model]
    layout = _training(launch, model, gpus, each)
    offload = training_gb(model, layout, gpus) > _ROOM_GB
    if (needed := training_gb(model, layout, gpus, offload=offload)) > _ROOM_GB:
        raise ConfigError(
            f"{launch.model} is not trained on {gpus} GPU{'s' if gpus > 1 else ''}: weights and gradients alone would "
            f"take {needed:.0f} GB of each, and {_ROOM_GB:.0f} is the most; give more GPUs, or a smaller model"
        )
    return _generation(
        launch, model, layout, launch.gpus * launch.nodes - gpus if launch.fully_async else gpus
    ), offload


def training_gb(model: Model, layout: Layout, gpus: int, *, offload: bool = False) -> float:
    """Gigabytes on one GPU for weights, gradients and, without `offload`, the optimizer.

    A parameter takes 2 bytes of BF16 weights, 4 of FP32 gradients and 12 of optimizer (FP32 weights and two moments).
    Weights and gradients are split by tensor and expert parallelism only. The optimizer is split over all GPUs.
    """
    sizes = model.sizes
    held = sizes.dense_parameters / layout.tensor + sizes.expert_parameters / layout.expert
    return (6 * held + (0 if offload else 12 * sizes.parameters / gpus)) / 1e9


def _training(launch: Launch, model: Model, gpus: int, each: int) -> Layout:
    layout = model.layout
    tensor = min(layout.tensor, each)
    parallel = layout.context if tensor * layout.context <= gpus else 1
    expert = min(layout.expert, gpus)
    if gpus % (tensor * parallel) or gpus % expert or model.sizes.heads % tensor:
        raise ConfigError(
            f"{launch.model} is split over {max(tensor * parallel, expert)} GPUs to train, which do not divide {gpus}; "
            "give a power of two"
        )
    tokens = layout.tokens * layout.context // parallel
    return replace(layout, tensor=tensor, context=parallel, expert=expert, tokens=tokens)


def _generation(launch: Launch, model: Model, layout: Layout, gpus: int) -> Layout:
    """The layout with the largest engine that it, the GPUs and FP8's blocks allow. Raises ConfigError."""
    problem = "no engine has a number of GPUs that divides them; give a power of two"
    for engine, experts in _engines(model, min(layout.engine, gpus)):
        if gpus % engine or launch.gpus % engine:
            continue
        cut = next(model.sizes.split_fp8_blocks(engine, experts), None) if launch.fp8 else None
        weight = model.sizes.parameters * (1 if launch.fp8 else 2) / engine / 1e9
        if cut:
            problem = f"{cut} is no multiple of 128, as FP8 asks; leave --fp8 out"
        elif weight > _ENGINE_ROOM_GB:
            problem = f"its weights would take {weight:.0f} GB of each GPU, and {_ENGINE_ROOM_GB:.0f} is the most"
        else:
            return replace(layout, engine=engine, engine_expert=experts)
    raise ConfigError(
        f"{launch.model} does not generate on {gpus} GPU{'s' if gpus > 1 else ''} of this kind: {problem}"
    )


def _engines(model: Model, most: int) -> Iterator[tuple[int, int]]:
    """Possible sizes of an engine, largest first: its GPUs, and its expert parallel size."""
    sizes = model.sizes
    for engine in range(most, 0, -1):
        if most % engine == 0 and sizes.heads % engine == 0:
            yield engine, 1
            if sizes.experts and engine > 1 and sizes.experts % engine == 0:
                yield engine, engine
