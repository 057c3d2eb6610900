"""Who earned the reward: from groups of episodes to an advantage for each of their turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import torch

from agentrl.errors import ConfigError
from agentrl.rollout.play.groups import by_seat
from agentrl.train.config import Algorithm, Credit
from agentrl.train.loss import group_advantages, return_advantages, turn_advantages
from agentrl.trajectory.trajectory import Trajectory, role_of

TurnAdvantages: TypeAlias = list[list[list[float]]]
"""The advantages of turns, indexed by group, member and turn. A member may have more advantages than turns."""


def assign_advantages(
    groups: Sequence[Sequence[Trajectory]], algorithm: Algorithm, credit: Credit, discount: float = 1.0
) -> tuple[TurnAdvantages, list[bool]]:
    """The advantage of each turn, and for each group whether the rewards differ. Equal rewards teach nothing.

    "episode": every turn has the episode's advantage. "turn": the rewards since a turn began decide the turn's
    advantage (`turn_advantages`). The difference of `score` and the steps' rewards counts as given at the end. A group
    of equal totals gets no advantage, even if the steps' rewards differ: a metric and a warning report such groups
    (`uncredited_groups`). "return": the discounted rewards from a turn on, against the members that took the same turn
    (`return_advantages`).

    In an Env with seats, the members of the same seat are compared. If an agent's branches have rewards, the branches
    of the same role are compared: `solver/1` and `solver/2` count separately, whatever their number of segments.
    flash_reinforce judges an episode against the whole batch, as slime 0.4 does. So all groups teach, or none.

    Raises ConfigError for rewards of branches unless the credit is "episode".
    """
    if algorithm == "flash_reinforce":
        values, differs = _by_seat([t for group in groups for t in group], algorithm, credit, discount)
        of_episodes = iter(values)
        return [[next(of_episodes) for _ in group] for group in groups], [differs] * len(groups)
    judged = [_by_seat(group, algorithm, credit, discount) for group in groups]
    return [values for values, _ in judged], [differs for _, differs in judged]


def _by_seat(
    group: Sequence[Trajectory], algorithm: Algorithm, credit: Credit, discount: float
) -> tuple[list[list[float]], bool]:
    """The advantages of each member's turns, and whether the rewards of any seat differ."""
    by_member: dict[int, list[float]] = {}
    differs = False
    for members in by_seat(group):
        values, informative = _judged(members, algorithm, credit, discount)
        by_member.update(zip(map(id, members), values, strict=True))
        differs |= informative
    return [by_member[id(trajectory)] for trajectory in group], differs


def _judged(
    group: Sequence[Trajectory], algorithm: Algorithm, credit: Credit, discount: float
) -> tuple[list[list[float]], bool]:
    """The advantages of each member's turns, compared with the other members, and whether the rewards differ."""
    if any(t.branch_rewards for t in group):
        if credit != "episode":
            raise ConfigError(f"credit: {credit} is of turns, and score gave rewards to branches: leave credit out")
        return _by_role(group, algorithm)
    turns = max(len(t.turns) for t in group)
    if credit == "return" and turns:
        return _by_return(group, algorithm, turns, discount)
    rewards = torch.tensor([[t.reward or 0.0 for t in group]], dtype=torch.float64)
    valid = torch.tensor([[t.is_valid for t in group]])
    judged = group_advantages(rewards, valid, algorithm)
    if credit == "turn" and turns:
        earned = torch.tensor([[_earned_before(t, turns) for t in group]], dtype=torch.float64)
        values = turn_advantages(judged, earned, valid, algorithm)
    else:
        values = judged.values[..., None].expand(-1, -1, turns)
    return values[0].tolist(), bool(judged.informative[0])


def _by_return(
    group: Sequence[Trajectory], algorithm: Algorithm, turns: int, discount: float
) -> tuple[list[list[float]], bool]:
    """The advantages of each turn's discounted return, compared with the members that took the turn."""
    returns = torch.tensor([[_returns(t, turns, discount) for t in group]], dtype=torch.float64)
    taken = torch.tensor([[[i < len(t.turns) and t.is_valid for i in range(turns)] for t in group]])
    judged = return_advantages(returns, taken, algorithm)
    return judged.values[0].tolist(), bool(judged.informative[0])


def _by_role(group: Sequence[Trajectory], algorithm: Algorithm) -> tuple[list[list[float]], bool]:
    """The advantages of rewards for branches, compared with the branches of the same role."""
    roles: dict[str, list[tuple[Trajectory, str, float]]] = {}
    for t in group:
        for name, reward in t.earned.items():
            roles.setdefault(role_of(name), []).append((t, name, reward or 0.0))
    by_branch: dict[tuple[int, str], float] = {}
    differs = False
    for units in roles.values():
        rewards = torch.tensor([[reward for *_, reward in units]], dtype=torch.float64)
        judged = group_advantages(rewards, torch.tensor([[t.is_valid for t, *_ in units]]), algorithm)
        keys = [(id(t), name) for t, name, _ in units]
        by_branch.update(zip(keys, judged.values[0].tolist(), strict=True))
        differs |= bool(judged.informative[0])
    return [_of_turns(t, by_branch) for t in group], differs


def _of_turns(trajectory: Trajectory, by_branch: Mapping[tuple[int, str], float]) -> list[float]:
    """The advantages of the turns, in order of time. A turn has the advantage of the branch of the turn's segment."""
    values = [0.0] * trajectory.turn_count
    for segment, places in trajectory.by_segment(range(trajectory.turn_count)):
        for place in places:
            values[place] = by_branch[id(trajectory), trajectory.paid_as(segment)]
    return values


def uncredited_groups(groups: Sequence[Sequence[Trajectory]]) -> int:
    """The number of groups that teach nothing because their totals are equal, although the steps' rewards differ."""
    _, informative = assign_advantages(groups, "grpo", "episode")
    earned = [
        any(len({tuple(turn.reward or 0.0 for turn in t.turns) for t in seat if t.is_valid}) > 1 for seat in seats)
        for seats in map(by_seat, groups)
    ]
    return sum(steps and not differs for steps, differs in zip(earned, informative, strict=True))


def _returns(trajectory: Trajectory, turns: int, discount: float) -> list[float]:
    """The discounted sum of the rewards from each turn on. The last turn gets the difference of `score` and the steps'
    rewards."""
    rewards = [turn.reward or 0.0 for turn in trajectory.turns]
    if rewards:
        rewards[-1] += (trajectory.reward or 0.0) - sum(rewards)
    after = accumulate(reversed(rewards), lambda later, reward: reward + discount * later)
    return [*reversed([*after]), *[0.0] * (turns - len(rewards))]


def _earned_before(trajectory: Trajectory, turns: int) -> list[float]:
    """The sum of the step rewards before each turn. The last step's reward is part of the outcome."""
    rewards = [turn.reward or 0.0 for turn in trajectory.turns[:-1]]
    rewards += [0.0] * (turns - len(rewards))
    return list(accumulate(rewards, initial=0.0))[:turns]
