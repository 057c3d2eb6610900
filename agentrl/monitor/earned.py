"""The mean reward of the episodes so far, for display in commands, and the number of episodes without a reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from agentrl.trajectory.trajectory import Trajectory, role_of


@dataclass(slots=True)
class Earned:
    """Collects the rewards of episodes. An episode without a reward counts as 0 if any other episode got a reward.
    Otherwise all episodes are unscored."""

    total: float = 0.0
    rewarded: int = 0
    unrewarded: int = 0
    failed: int = 0
    """The number of failed and aborted episodes, which all means leave out."""

    @classmethod
    def of(cls, episodes: Iterable[Trajectory]) -> Self:
        earned = cls()
        for episode in episodes:
            earned.add(episode)
        return earned

    def add(self, episode: Trajectory) -> None:
        if not episode.is_valid:
            self.failed += 1
        elif episode.reward is None:
            self.unrewarded += 1
        else:
            self.rewarded += 1
            self.total += episode.reward

    @property
    def count(self) -> int:
        return self.rewarded + self.unrewarded + self.failed

    @property
    def mean(self) -> float | None:
        return self.total / (self.rewarded + self.unrewarded) if self.rewarded else None

    @property
    def unscored(self) -> int:
        return 0 if self.rewarded else self.unrewarded

    def __str__(self) -> str:
        """The mean reward as text: `0.580`, `unscored 300`, or `none`."""
        if self.mean is None:
            return f"unscored {self.unscored}" if self.unscored else "none"
        return f"{self.mean:.3f}"

    def with_failed(self) -> str:
        """The mean reward as text, with the number of failed episodes if there are any."""
        return f"{self}, {self.failed} failed" if self.failed else str(self)


def rewards_by_role(episodes: Iterable[Trajectory]) -> Mapping[str, Sequence[float]]:
    """Role of an agent's branches -> the rewards of the valid episodes, as they are trained on. The key "" has the
    rewards of the main conversation, and of episodes without rewards for branches."""
    by_role: dict[str, list[float]] = {}
    for episode in episodes:
        for name, reward in episode.earned.items() if episode.is_valid else ():
            if reward is not None:
                by_role.setdefault(role_of(name), []).append(reward)
    return by_role


def rewards_of(episodes: Iterable[Trajectory]) -> Sequence[float]:
    """The rewards of the valid episodes. Unscored episodes have no reward: see
    `agentrl.rollout.play.groups.settle_rewards`.
    """
    return [episode.reward for episode in episodes if episode.is_valid and episode.reward is not None]
