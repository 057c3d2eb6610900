"""The embedded trainer's side: its own Trainer and Learner on the recorded episodes, stopped before the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from agentrl import Trajectory
from agentrl.train import TrainConfig, Trainer
from agentrl.train.batch import Row
from agentrl.train.learner import Learner, Update
from tests.parity.episodes import LIMITS, log_probs, moved

LENGTH = 400
"""The longest response, for Dr.GRPO's constant."""


@dataclass
class Models:
    """The same weights, moved at random: which sampled, which the trainer began the step with, which it has now."""

    engine: torch.nn.Module
    before: torch.nn.Module
    now: torch.nn.Module
    reference: torch.nn.Module

    @classmethod
    def around(cls, engine: torch.nn.Module) -> Models:
        return cls(engine, moved(engine, 0.001, 1), moved(engine, 0.008, 2), moved(engine, 0.01, 3))


@dataclass
class Result:
    """Before the optimizer's step."""

    loss: float
    update: Update
    gradients: dict[str, Tensor]
    rows: list[Row]


class Stopped(Learner):
    """Keeps the gradients instead of applying them."""

    def _apply(self, optimizers, loss, remedy):
        self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters()}
        self.model.zero_grad(set_to_none=True)
        return 0.0


def config(**values) -> TrainConfig:
    given = {"env": "agentrl_envs.fact_search:FactSearch", "data": "unused.jsonl", "out": "unused", "device": "cpu"}
    return TrainConfig.make(**{**given, "minibatches": 1, "limits": {"context": LIMITS.context}, **values})


def learn(groups: list[list[Trajectory]], models: Models, micro_batch_tokens: int = 256, **values) -> Result:
    """One minibatch of all episodes, in several micro-batches."""
    asked = config(micro_batch_tokens=micro_batch_tokens, **values)
    trainer = Trainer(asked)
    trainer.length = LENGTH
    rows, _ = trainer.rows(groups)
    update = Update(0.0)
    if asked.tis_clip is not None:
        rows = Stopped(models.before, asked).apply_tis(rows, asked.tis_clip, update)
    learner = Stopped(models.now, asked.model_copy(update={"tis_clip": None}))
    if asked.kl_coef > 0:
        learner.reference = models.reference
    normaliser = trainer.normaliser([t for group in groups for t in group])
    found = learner.learn(rows, step=1, normaliser=normaliser)
    found.truncated = update.truncated
    return Result(found.loss, found, learner.gradients, rows)


@cache
def trained(trajectory: Trajectory, model: torch.nn.Module) -> list[float]:
    """A model's log-probs of the loss_mask tokens."""
    response = log_probs(model, trajectory.tokens)[trajectory.prompt_length - 1 :]
    return [x for x, mask in zip(response, trajectory.loss_mask, strict=True) if mask]
