"""Metrics of a rollout's speed: throughput, lengths of queues, ages of groups, seconds by phase, and stragglers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

_STRAGGLES = 5
"""An episode in flight for more than this multiple of the median time is a straggler."""


@dataclass(slots=True)
class Flow:
    """Counts the episodes of a rollout from one report to the next."""

    _flying: dict[str, float] = field(default_factory=dict)
    _ended: list[float] = field(default_factory=list)
    """The seconds of each episode that has ended since the last report."""
    _usual: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    @contextmanager
    def episode(self, name: str) -> Iterator[None]:
        """Count an episode as in flight while the context is open."""
        began = self._flying[name] = time.monotonic()
        try:
            yield
        finally:
            self._flying.pop(name, None)
            self._ended.append(time.monotonic() - began)

    def stragglers(self) -> list[str]:
        """The names of the episodes that are in flight for several times the median time."""
        now = time.monotonic()
        return [name for name, began in self._flying.items() if self._usual and now - began > _STRAGGLES * self._usual]

    def report(
        self,
        groups: Sequence[Sequence[Trajectory]],
        *,
        group_ages: Mapping[int, int],
        queues: Mapping[str, int],
    ) -> dict[str, JSON]:
        """The metrics of a step with these groups. Then the counts of the next step begin. Seconds of phases are summed
        over episodes.

        `group_ages` maps the age of a group to the number of groups. `queues` maps a queue to its present length.
        """
        now, ended = time.monotonic(), self._ended
        self._usual = median(ended) if ended else self._usual
        turns = [turn for group in groups for trajectory in group for turn in trajectory.turns]
        prompted = sum(turn.prompt_tokens for turn in turns)
        metrics: dict[str, JSON] = {
            "episodes_per_second": len(ended) / max(now - self._since, 1e-9),
            "episode_s_median": self._usual,
            "episode_s_max": max(ended, default=0.0),
            "episodes_in_flight": len(self._flying),
            "stragglers": len(self.stragglers()),
            "generate_s": sum(turn.generate_s for turn in turns),
            "env_s": sum(turn.env_s for turn in turns),
            "prefix_hit_rate": sum(turn.cached_tokens for turn in turns) / max(prompted, 1),
            "group_ages": {str(age): count for age, count in group_ages.items()},
            "queues": dict(queues),
        }
        self._since, self._ended = now, []
        return metrics
