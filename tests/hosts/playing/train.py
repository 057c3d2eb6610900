"""`agentrl train` itself as a host: the rows that its learner would read."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console

from agentrl.hosts.equality import HostEpisode, HostRow
from agentrl.train import TrainConfig, Trainer
from agentrl.train.batch import Row
from agentrl.train.learner import Update
from tests.hosts.hosting import KeptTurns, Policy

SIZE = 4


class TrainedPolicy(KeptTurns):
    """A policy that the trainer's weights do not change."""

    async def update(self, model, version) -> None: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class Watching(Trainer):
    """Keeps the episodes of each step instead of an update."""

    def __init__(self, config, policy) -> None:
        super().__init__(config, console=Console(file=io.StringIO()))
        self.policy, self.played = policy, []

    def _open_engine(self, renderer):
        return self.policy

    def update(self, groups, step):
        self.played += [trajectory for group in groups for trajectory in group]
        return {"zero_advantage_groups": 0, **Update(0.0).metrics()}


async def episodes(case, count, renderer):
    """The episodes of a run of `agentrl train` with a scripted policy, each with the rows that the learner reads."""
    with tempfile.TemporaryDirectory() as folder:
        keys = case.all_settings()
        keys.pop("episodes", None)
        config = TrainConfig(
            env=case.env if isinstance(case.env, str) else f"{case.env.__module__}:{case.env.__name__}",
            model=case.model,
            out=Path(folder) / "run",
            steps=1,
            prompts_per_step=count // SIZE,
            group_size=SIZE,
            eval_tasks=1,
            canaries=None,
            numerics=None,
            **keys,
        )
        policy = TrainedPolicy(Policy(renderer, case.reply))
        async with Watching(config, policy) as trainer:
            await trainer.run()
    return [_episode(trajectory, policy) for trajectory in trainer.played]


def _episode(trajectory, policy):
    rows = []
    for segment, ones in trajectory.by_segment([1.0] * trajectory.turn_count):
        length, row = len(segment.tokens), Row.of(segment, ones)
        mask, log_probs = [0] * length, [0.0] * length
        for position, log_prob in zip(row.positions, row.log_probs, strict=True) if row else ():
            mask[position], log_probs[position] = 1, log_prob
        rows.append(HostRow([*(row.tokens if row else segment.tokens)], mask, log_probs))
    turns = policy.of(trajectory.session_id)
    reward = (trajectory.reward or 0.0) if trajectory.is_valid else None
    return HostEpisode(trajectory.task, turns, rows, reward, trajectory.stop)
