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
    """A reward, and the share of each turn."""

    turns: tuple[float, ...] = ()


class Grader:
    """Grades the output of a model. A subclass defines `grade`; `@grader` turns a function into a grader.

    Both hosts accept a grader. `reward: my_rewards.py:mine` calls it with a Trajectory, `--custom-rm-path
    my_rewards.mine` with slime's arguments and a Sample or a list of Samples.
    """

    async def grade(self, output: ModelOutput) -> Grade:
        """The reward. Raises InfraError or TimeoutError if the infrastructure failed: the episode is not trained."""
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
    """A Grader made of a function of `ModelOutput`, `def` or `async def`. A plain `def` must not block."""

    def __init__(self, function: GradeFn) -> None:
        self.function = function

    async def grade(self, output: ModelOutput) -> Grade:
        reward = self.function(output)
        return await reward if inspect.isawaitable(reward) else reward


def grader(function: GradeFn) -> Grader:
    """Decorate a function of `ModelOutput` for use in `reward:`, `--custom-rm-path` and `weighted`."""
    return FunctionGrader(function)


def as_reward(grade: Grade) -> Reward:
    return grade if isinstance(grade, Reward) else Reward(number(grade, "the reward"))
