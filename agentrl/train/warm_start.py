"""The supervised warm start: imitate recorded episodes, so that RL can find a reward."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from agentrl.errors import ConfigError, LedgerError
from agentrl.rollout.jsonl import read_jsonl
from agentrl.train.batch import Row
from agentrl.train.config import OptimizerName, WarmStartConfig
from agentrl.train.optimizers import make_adam
from agentrl.trajectory import Trajectory

_WARMUP_STEPS = 30
_FINAL_SHARE = 0.05
_MUON_FACTOR = 5.0
_ROUTER = re.compile(r"(^|\.)((\w+_)?router|router_gate|gate|shared_expert_gate|wg)$")
"""Names that transformers gives to modules that choose experts. `gate_proj` is not one."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode to imitate: its tokens, and a mask that is 1 at those to learn."""

    tokens: Sequence[int]
    mask: Sequence[int]


def load_demonstrations(path: Path, vocabulary: int) -> list[Demonstration]:
    """Read trajectories, one a line. Raises ConfigError (`file:line: what and remedy`)."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of demonstrations; record some with agentrl play --out")
    found: list[Demonstration] = []
    for number, row in read_jsonl(path, "record some with agentrl play --out"):
        try:
            trajectory = Trajectory.from_json(row)
        except (ValueError, KeyError, TypeError, AttributeError, LedgerError) as exc:
            reason = f"{type(exc).__name__}: {exc}"
            raise ConfigError(f"{path}:{number}: not a trajectory ({reason}); record it again") from exc
        highest = max((token for segment in trajectory.segments for token in segment.ids), default=0)
        if highest >= vocabulary:
            raise ConfigError(
                f"{path}:{number}: token {highest} is beyond the model's {vocabulary}; "
                "record it with this model's tokenizer"
            )
        for segment in trajectory.segments:
            if segment.ledger.trained:
                mask = [0] * segment.prompt_length + segment.loss_mask
                found.append(Demonstration(segment.ids, mask))
    if not found:
        raise ConfigError(f"{path}: no demonstration with a token to imitate; record some")
    return found


def demonstration_batches(
    demonstrations: Sequence[Demonstration], config: WarmStartConfig, seed: int
) -> Iterator[list[Row]]:
    """`config.steps` batches. Each epoch has another order."""
    shuffler = random.Random(f"{seed}/warm_start")
    order: list[int] = []
    for _ in range(config.steps):
        while len(order) < config.batch_size:
            epoch = list(range(len(demonstrations)))
            shuffler.shuffle(epoch)
            order += epoch
        batch, order = order[: config.batch_size], order[config.batch_size :]
        yield weighted_rows([demonstrations[i] for i in batch], config.context_weight)


def weighted_rows(batch: Sequence[Demonstration], context_weight: float) -> list[Row]:
    """Rows whose loss is the mean over the player's tokens, plus `context_weight` times the mean over all others."""
    player = sum(sum(d.mask) for d in batch)
    others = sum(len(d.tokens) - 1 for d in batch) - player
    rows = []
    for d in batch:
        positions = [i for i in range(1, len(d.tokens)) if d.mask[i] or context_weight]
        weights = [1 / player if d.mask[i] else context_weight / others for i in positions]
        rows.append(Row(d.tokens, positions, weights))
    return rows


def make_optimizers(
    model: Any, masters: Sequence[Tensor], config: WarmStartConfig, adam: OptimizerName = "adamw"
) -> list[Optimizer]:
    """Optimizers of `masters`, which stand for the model's trained parameters (see Learner). Raises ConfigError without
    Muon."""
    rate = config.learning_rate
    if config.optimizer == "adamw":
        return [make_adam(adam, masters, rate)]
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"warm_start.optimizer: torch {torch.__version__} has no Muon; use adamw, or torch 2.9")
    outer = _outer(model)
    inner = [p.ndim == 2 and id(p) not in outer for p in model.parameters()]
    hidden = list(compress(masters, inner))
    rest = [master for master, is_inner in zip(masters, inner, strict=True) if not is_inner]
    muon = torch.optim.Muon(hidden, lr=_MUON_FACTOR * rate, momentum=0.95, weight_decay=0.0, adjust_lr_fn="original")
    return [muon, make_adam(adam, rest, rate)]


def _outer(model: Any) -> set[int]:
    """Ids of matrices that do not map hidden states: embeddings of any kind, the head, routers of experts."""
    heads = [head for head in (model.get_input_embeddings(), model.get_output_embeddings()) if head is not None]
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) or _ROUTER.search(name):
            heads.append(module)
    return {id(parameter) for head in heads for parameter in head.parameters()}


def warm_start_schedule(step: int, steps: int) -> float:
    """Share of the learning rate at a step, counted from 1: a linear rise over 30 steps, then a cosine to a
    twentieth."""
    cosine = 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
    return min(1.0, step / _WARMUP_STEPS) * (_FINAL_SHARE + (1 - _FINAL_SHARE) * cosine)
