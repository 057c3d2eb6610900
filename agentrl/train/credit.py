"""Who earned the reward: from groups of episodes to an advantage for each of their turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import torch

from agentrl.train.config import Algorithm, Credit
from agentrl.train.loss import group_advantages, turn_advantages
from agentrl.trajectory.trajectory import Trajectory

TurnAdvantages: TypeAlias = list[list[list[float]]]
"""Indexed by group, member and turn; padded to the highest number of turns."""


def assign_advantages(
    groups: Sequence[Sequence[Trajectory]], algorithm: Algorithm, credit: Credit
) -> tuple[TurnAdvantages, list[bool]]:
    """The advantage of each turn, and for each group whether its rewards differ. Equal rewards teach nothing.

    "episode": every turn has its episode's advantage. "turn": the rewards after a turn began decide its advantage
    (`turn_advantages`). A reward that `score` adds to those of the steps counts as given at the end. A group of equal
    totals gets nothing, however its steps were rewarded: a metric and a warning report it (`uncredited_groups`).

    flash_reinforce judges an episode against the whole batch, as slime 0.4 does. So all groups teach, or none.
    """
    if algorithm == "flash_reinforce":
        values, differs = _judged([[t for group in groups for t in group]], algorithm, credit)
        of_episodes = iter(values[0])
        return [[next(of_episodes) for _ in group] for group in groups], differs * len(groups)
    return _judged(groups, algorithm, credit)


def _judged(
    groups: Sequence[Sequence[Trajectory]], algorithm: Algorithm, credit: Credit
) -> tuple[TurnAdvantages, list[bool]]:
    """Advantages against the members of the same group. Groups have equal sizes."""
    rewards = torch.tensor([[t.reward or 0.0 for t in group] for group in groups], dtype=torch.float64)
    valid = torch.tensor([[t.is_valid for t in group] for group in groups])
    found = group_advantages(rewards, valid, algorithm)
    turns = max(len(t.turns) for group in groups for t in group)
    if credit == "turn" and turns:
        earned = torch.tensor([[_earned_before(t, turns) for t in group] for group in groups], dtype=torch.float64)
        values = turn_advantages(found, earned, valid, algorithm)
    else:
        values = found.values[..., None].expand(-1, -1, turns)
    return values.tolist(), found.informative.tolist()


def uncredited_groups(groups: Sequence[Sequence[Trajectory]]) -> int:
    """How many groups teach nothing because their totals are equal, although their steps were rewarded differently."""
    _, informative = assign_advantages(groups, "grpo", "episode")
    earned = [{tuple(turn.reward or 0.0 for turn in t.turns) for t in group if t.is_valid} for group in groups]
    return sum(len(steps) > 1 and not differs for steps, differs in zip(earned, informative, strict=True))


def _earned_before(trajectory: Trajectory, turns: int) -> list[float]:
    """The sum of the step rewards before each turn. The last step's reward is part of the outcome."""
    rewards = [turn.reward or 0.0 for turn in trajectory.turns[:-1]]
    rewards += [0.0] * (turns - len(rewards))
    return list(accumulate(rewards, initial=0.0))[:turns]
