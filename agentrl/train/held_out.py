"""The results of a run's evaluations, and the order from the best to the worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agentrl.monitor.by_key import Score, score_of
from agentrl.monitor.earned import rewards_of
from agentrl.rollout.play.evaluate import Evaluation
from agentrl.types import JSON

_LEAST_SHARE = 0.5
"""An evaluation is not ranked if it scored less than this share of the tasks of another: its other episodes failed."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The result of an evaluation. The interval is of 95 %, by resampling the tasks."""

    name: str
    """start, warm, final, or the name of a step, such as step_000010."""
    step: int
    """The number of RL steps that the evaluated weights have learned."""
    score: Score
    rewards: tuple[float | None, ...] = ()
    """The reward of each held-out task, in order; None for an episode that failed. Empty if an older version wrote the
    result."""

    @classmethod
    def of(cls, name: str, step: int, evaluation: Evaluation) -> Self:
        played = evaluation.trajectories
        rewards = (episode.reward if episode.is_valid else None for episode in played)
        return cls(name, step, score_of(rewards_of(played), evaluation.metrics.failed_episodes), tuple(rewards))

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        low, high = line["interval"]
        score = Score(line["mean"], low, high, line["tasks"], line["failed"])
        return cls(line["name"], line["step"], score, tuple(line.get("rewards", ())))

    def to_json(self) -> dict[str, JSON]:
        """The result without the reward of each task."""
        return {"name": self.name, "step": self.step, **self.score.to_json()}

    def line(self) -> dict[str, JSON]:
        """A line of evaluations.jsonl, with the reward of each task."""
        return {**self.to_json(), "rewards": list(self.rewards)}

    @property
    def interval(self) -> str:
        """The interval as text: ` (0.250 to 1.000)`; empty without a mean."""
        low, high = self.score.low, self.score.high
        return "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"


def by_step(results: Iterable[HeldOut]) -> dict[int, HeldOut]:
    """Step -> the last evaluation of the weights of this step. The evaluation after a warm start replaces the
    evaluation before."""
    return {result.step: result for result in results}


def ranked(results: Iterable[HeldOut]) -> Sequence[HeldOut]:
    """The evaluations with a mean, the best first. Of equal evaluations the earlier is first."""
    scored = [(mean, result) for result in by_step(results).values() if (mean := result.score.mean) is not None]
    least = _LEAST_SHARE * max((result.score.tasks for _, result in scored), default=0)
    scored = [(mean, result) for mean, result in scored if result.score.tasks >= least]
    return [result for _, result in sorted(scored, key=lambda pair: (-pair[0], pair[1].step))]
