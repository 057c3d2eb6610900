"""Graders built from other graders and from functions: weighted sums, rewards of turns, shaping, groups, and functions
in a process."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from agentrl._util.concurrency import gather
from agentrl.chat.client import AsksMessages
from agentrl.errors import ConfigError
from agentrl.plain import number
from agentrl.rewards.answers import LONGEST
from agentrl.rewards.grader import Grade, Grader, TurnReward, as_reward
from agentrl.rewards.workers import shared
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, MaybeAwait, Reward, Task

TurnFn: TypeAlias = "Callable[[str, str], MaybeAwait[float]]"
"""A function of the model's text of a turn and of the observation after the turn. The function returns the reward of
the turn."""
GroupFn: TypeAlias = "Callable[[Sequence[ModelOutput]], MaybeAwait[Sequence[float | Reward]]]"


def weighted(**graders: tuple[Grader, float]) -> Grader:
    """The weighted sum of graders: `weighted(em=(em, 1.0), short=(short, 0.1))`.

    The weighted reward of each grader is logged as a part under the grader's name, and the parts of a grader as in
    `em.format`. Raises ConfigError.
    """
    for name, pair in graders.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Grader)):
            raise ConfigError(f"weighted: {name} must be (grader, weight), not {pair!r:.80}; see @grader for functions")
        if hasattr(pair[0], "grade_group"):
            raise ConfigError(
                f"weighted: {name} grades groups, and `weighted` sums one episode at a time; use it alone"
            )
    if not graders:
        raise ConfigError("weighted: name at least one grader: weighted(em=(em, 1.0))")
    return _Weighted(graders)


class _Weighted(Grader):
    def __init__(self, graders: Mapping[str, tuple[Grader, float]]) -> None:
        self.graders = graders

    def check_task(self, task: Task) -> None:
        for grader, _ in self.graders.values():
            grader.check_task(task)

    async def grade(self, output: ModelOutput) -> Reward:
        grades = await gather([grader.grade(output) for grader, _ in self.graders.values()])
        parts: dict[str, float] = {}
        turns = [0.0] * len(output.turns)
        for (name, (_, weight)), grade in zip(self.graders.items(), grades, strict=True):
            reward = as_reward(grade)
            parts[name] = weight * reward.value
            parts |= {f"{name}.{part}": value for part, value in reward.parts.items()}
            if isinstance(reward, TurnReward):
                turns = [sofar + weight * more for sofar, more in zip(turns, reward.turns, strict=True)]
        total = sum(parts[name] for name in self.graders)
        return TurnReward(total, parts, turns=tuple(turns)) if any(turns) else Reward(total, parts)


def per_turn(function: TurnFn) -> Grader:
    """Decorate a function of the model's text of a turn and of the observation after the turn, which returns a reward.
    The reward of the episode is the sum over its turns.

    The reward of each turn is stored in the trajectory's turn, for `credit: turn`.
    """
    return _PerTurn(function)


class _PerTurn(Grader):
    def __init__(self, function: TurnFn) -> None:
        self.function = function

    async def grade(self, output: ModelOutput) -> TurnReward:
        rewards = [await self._of(turn, after) for turn, after in _pairs(output)]
        return TurnReward(sum(rewards), turns=tuple(rewards))

    async def _of(self, turn: str, after: str) -> float:
        reward = self.function(turn, after)
        return number(await reward if inspect.isawaitable(reward) else reward, "the reward of a turn")


def shaped(potential: Callable[[ModelOutput], float], *, discount: float = 1.0) -> Grader:
    """Potential-based shaping: a turn earns `discount` * (the potential after the turn) - (the potential before the
    turn).

    `potential` is a function of the `ModelOutput` so far; before the first turn, it has no turns. At the end the
    potential counts as 0. So the sum over an episode is the same for all policies (Ng et al. 1999), and only the credit
    of the turns changes.
    """
    return _Shaped(potential, discount)


class _Shaped(Grader):
    def __init__(self, potential: Callable[[ModelOutput], float], discount: float) -> None:
        self.potential, self.discount = potential, discount

    async def grade(self, output: ModelOutput) -> TurnReward:
        potentials = [
            number(self.potential(_after(output, turns)), "the potential") for turns in range(len(output.turns))
        ]
        rewards = [
            self.discount * after - before
            for before, after in zip(potentials, [*potentials[1:], 0.0][: len(potentials)], strict=True)
        ]
        return TurnReward(sum(rewards), turns=tuple(rewards))


def _after(output: ModelOutput, turns: int) -> ModelOutput:
    """The part of the output with the first `turns` turns and their observations."""
    return ModelOutput.of_turns(
        output.turns[:turns],
        observed=output.observed[:turns],
        prompt=output.prompt,
        label=output.label,
        metadata=output.metadata,
    )


def _pairs(output: ModelOutput) -> list[tuple[str, str]]:
    """(turn, observation after the turn) for each turn; "" without an observation."""
    return list(zip_longest(output.turns, output.observed[: len(output.turns)], fillvalue=""))


def group(function: GroupFn) -> GroupGrader:
    """Decorate a function of the finished episodes of a group. It returns a reward for each episode.

    Failed and aborted episodes are left out. slime needs --group-rm.
    """
    return GroupGrader(function)


class GroupGrader(Grader):
    """Grades the episodes of a group together, after the last episode has ended."""

    def __init__(self, function: GroupFn) -> None:
        self.function = function

    async def grade_group(self, group: Sequence[ModelOutput]) -> list[Grade]:
        """A reward for each episode. Raises ConfigError if the function returns a different number of rewards."""
        answer = self.function(group)
        rewards = list(await answer if inspect.isawaitable(answer) else answer)
        if len(rewards) != len(group):
            raise ConfigError(
                f"a group reward returned {len(rewards)} rewards for {len(group)} episodes; return one each"
            )
        return rewards

    async def of_group(self, trajectories: Sequence[Trajectory], policy: AsksMessages | None = None) -> list[Grade]:
        """The rewards of trajectories by `grade_group`. agentrl's rollout calls this method. `policy` is the model in
        training."""
        return await self.grade_group([ModelOutput.of(trajectory) for trajectory in trajectories])

    def __call__(self, *arguments: Any, **kwargs: Any) -> Awaitable[JSON]:
        if len(arguments) == 1 and isinstance(arguments[0], Trajectory):
            return _later()
        if len(arguments) == 2 and not isinstance(arguments[1], list):
            raise ConfigError("this reward grades groups; add --group-rm, so that slime hands over whole groups")
        return super().__call__(*arguments, **kwargs)


async def _later() -> None:
    """The result for an episode whose group is not finished: no reward yet."""


def in_process(path: str, *, seconds: float = 10.0) -> Grader:
    """A grader from a blocking function `(answer, label) -> float`, which runs in a separate process. `path` is
    `file.py:name` or `package.module:name`."""
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise ConfigError(f"in_process: {path!r} names no function; write file.py:name or package.module:name")
    if place.endswith(".py") and not Path(place).is_file():
        raise ConfigError(f"in_process: {place}: no such file; give its path from here, {Path.cwd()}")
    place = str(Path(place).resolve()) if place.endswith(".py") else place
    return _InProcess(f"{place}:{name}", seconds)


class _InProcess(Grader):
    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.seconds = path, seconds

    async def grade(self, output: ModelOutput) -> float:
        answer = output.answer if len(output.answer) <= LONGEST else ""
        reward = await shared().run(self.path, answer, output.label, seconds=self.seconds)
        return number(reward, f"the reward of {self.path}")
