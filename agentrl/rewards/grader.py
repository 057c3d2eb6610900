"""A grader: an object that is a reward function of agentrl and a reward model of slime."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentrl.plain import number
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, MaybeAwait, Reward, Task

Grade: TypeAlias = "float | Reward"
GradeFn: TypeAlias = "Callable[[ModelOutput], MaybeAwait[float | Reward]]"


@dataclass(frozen=True, slots=True)
class TurnReward(Reward):
    """A reward, and the part of the reward that belongs to each turn."""

    turns: tuple[float, ...] = ()


class Grader:
    """Grades the output of a model. A subclass defines `grade`; `@grader` turns a function into a grader.

    agentrl and slime accept a grader. agentrl (`reward: my_rewards.py:mine`) calls the grader with a Trajectory. slime
    (`--custom-rm-path my_rewards.mine`) calls the grader with its arguments and a Sample or a list of Samples.
    """

    async def grade(self, output: ModelOutput) -> Grade:
        """Return the reward. Raises InfraError or TimeoutError if the infrastructure failed: the episode is not trained
        then."""
        raise NotImplementedError

    def check_task(self, task: Task) -> None:
        """Check the label of a task before a run. Raises ConfigError for a label that no answer can match."""

    def __call__(self, *arguments: Any, **kwargs: Any) -> Awaitable[JSON]:
        if len(arguments) == 1 and isinstance(arguments[0], Trajectory):
            return self._of_trajectory(arguments[0])
        if len(arguments) == 2:
            from agentrl.slime.graded import graded  # the host's door, as `agentrl.adapt` is

            return graded(self, *arguments)
        raise TypeError(
            f"{type(self).__name__} takes a trajectory, or slime's (args, sample), not {len(arguments)} arguments"
        )

    async def _of_trajectory(self, trajectory: Trajectory) -> Grade:
        grade = await self.grade(ModelOutput.of(trajectory))
        if isinstance(grade, TurnReward):
            for turn, reward in zip(trajectory.turns, grade.turns, strict=True):
                turn.reward = (turn.reward or 0.0) + reward
        return grade


class FunctionGrader(Grader):
    """A grader that calls a function of `ModelOutput`, `def` or `async def`. A plain `def` must not block."""

    def __init__(self, function: GradeFn) -> None:
        self.function = function

    async def grade(self, output: ModelOutput) -> Grade:
        reward = self.function(output)
        return await reward if inspect.isawaitable(reward) else reward


def grader(function: GradeFn) -> Grader:
    """Decorate a function of `ModelOutput`. The result is a grader for `reward:`, `--custom-rm-path` and `weighted`."""
    return FunctionGrader(function)


def as_reward(grade: Grade) -> Reward:
    return grade if isinstance(grade, Reward) else Reward(number(grade, "the reward"))
