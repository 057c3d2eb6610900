"""Canaries: checks that stop a run early, with the reason, if the run cannot be learning.

Canaries read only the metrics of each step, so they work with any trainer. After a resume, canaries start afresh,
because the cause may have been fixed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl.errors import CanaryError
from agentrl.monitor.metrics import RolloutMetrics

_WINDOW, _FAILING_STEPS, _FAILING_SHARE = 10, 3, 0.05
"""When failing groups cause a warning. _WINDOW: the number of steps over which failing groups are counted.
_FAILING_STEPS: the fewest of these steps with a failing group. _FAILING_SHARE: the least share of groups that fail."""
_BASELINE_STEPS, _BASELINE_AT_LEAST, _BAD_CALL_STEPS = 10, 3, 3
"""The definition of a jump of wrong tool calls. _BASELINE_STEPS: the number of latest steps without a jump with which a
step is compared. _BASELINE_AT_LEAST: the fewest such steps. _BAD_CALL_STEPS: the number of steps that a jump lasts
before the run stops."""
_FLAT_STEPS = 10
"""The number of consecutive steps with equal rewards in every group that causes a warning."""


class CanaryConfig(BaseModel):
    """When a run stops because it cannot be learning. Other checks have no setting. A step without trainable tokens
    stops the run, too. Warnings report equal rewards in every group, groups in which every episode fails, tools that
    raise unexpected exceptions, a warm start that has learned the demonstrations by heart, and a reward that falls."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    no_tool_calls: int = Field(default=10, ge=0)
    """The number of consecutive steps without any tool call after which the run stops, if there are tools. 0: never."""
    bad_call_jump: float = Field(default=0.5, ge=0, le=1)
    """The rise of the share of turns with a wrong tool call, over the earlier steps, at which the run stops. The rise
    must last three steps. 0: never."""
    held_out_fall: Literal["warn", "go_back"] = "warn"
    """The consequence of a significant fall of the held-out reward, below the evaluation before RL or the best. warn: a
    warning. go_back: also, once, the run continues from its best weights with half the learning rate."""


class Canaries:
    """Checks the steps of a run, in order."""

    def __init__(self, config: CanaryConfig, *, grouped: bool = True) -> None:
        """`grouped`: whether the rewards of a group are compared, so that equal rewards teach nothing."""
        self._config, self._grouped = config, grouped
        self._silent_steps = self._silent_episodes = self._flat_steps = self._loud_steps = 0
        self._calm: deque[float] = deque(maxlen=_BASELINE_STEPS)
        self._failing: deque[RolloutMetrics] = deque(maxlen=_WINDOW)
        self._said_failing = 0
        """The number of steps before the next warning about failing groups is allowed."""
        self._said_uncredited = False
        self._tool_errors: set[str] = set()

    def watch(self, step: int, metrics: RolloutMetrics) -> list[str]:
        """The warnings about the episodes of a step. Raises CanaryError to stop the run."""
        self._trainable_tokens(step, metrics)
        self._tool_calls(step, metrics)
        self._bad_calls(step, metrics)
        return [
            *self._zero_advantage(step, metrics),
            *self._uncredited(step, metrics),
            *self._failing_groups(step, metrics),
            *self._new_tool_errors(step, metrics),
        ]

    def _trainable_tokens(self, step: int, metrics: RolloutMetrics) -> None:
        # The user asked to mask overlong episodes, and a step may hold only overlong episodes.
        asked_for = 0 < metrics.sampled_tokens == metrics.masked_tokens.get("overlong", 0)
        if metrics.trained_tokens == 0 and not asked_for:
            raise CanaryError(
                f"step {step}: no token can be trained: {metrics.sampled_tokens} were sampled, "
                f"masked: {_listed(metrics.masked_tokens)}; the {metrics.episodes} episodes ended so: "
                f"{_listed(metrics.stops)}; look at one with agentrl show, and at the warnings above"
            )

    def _tool_calls(self, step: int, metrics: RolloutMetrics) -> None:
        silent = metrics.episodes_with_tools > 0 and metrics.tool_call_rate == 0
        self._silent_steps = self._silent_steps + 1 if silent else 0
        self._silent_episodes = self._silent_episodes + metrics.episodes_with_tools if silent else 0
        if 0 < self._config.no_tool_calls <= self._silent_steps:
            raise CanaryError(
                f"{_steps(step, self._silent_steps)}: none of {self._silent_episodes} episodes called a "
                f"tool, though they had tools (bad-call rate {metrics.bad_call_rate:.0%}); look at one with "
                "agentrl show: is the tool in the prompt, and does the model know how calls are written? A warm start "
                "teaches it"
            )

    def _bad_calls(self, step: int, metrics: RolloutMetrics) -> None:
        rate, jump = metrics.bad_call_rate, self._config.bad_call_jump
        before = statistics.fmean(self._calm) if len(self._calm) >= _BASELINE_AT_LEAST else 1.0
        if not jump or rate < before + jump:
            self._loud_steps = 0
            self._calm.append(rate)
            return
        self._loud_steps += 1
        if self._loud_steps >= _BAD_CALL_STEPS:
            raise CanaryError(
                f"{_steps(step, self._loud_steps)}: {rate:.0%} of the turns hold a wrong tool call, before "
                f"it was {before:.0%}; look at one with agentrl show; a lower learning rate, or a penalty in "
                "Env.bad_calls, may prevent it"
            )

    def _zero_advantage(self, step: int, metrics: RolloutMetrics) -> Iterator[str]:
        flat = metrics.zero_advantage_groups == metrics.groups
        self._flat_steps = self._flat_steps + 1 if flat else 0
        if self._grouped and self._flat_steps and self._flat_steps % _FLAT_STEPS == 0:
            yield (
                f"{_steps(step, self._flat_steps)}: the rewards of no group differed (their mean is "
                f"{metrics.reward_mean:.3g}{_failed(metrics)}), so nothing is learned; are the tasks too hard, too "
                "easy, or unscored?"
            )

    def _uncredited(self, step: int, metrics: RolloutMetrics) -> Iterator[str]:
        if metrics.uncredited_groups and self._grouped and not self._said_uncredited:
            self._said_uncredited = True
            yield (
                f"step {step}: in {metrics.uncredited_groups} of {metrics.groups} groups all episodes have the same "
                "total reward, so credit: turn gives no credit to their turns, although their steps were rewarded "
                "differently; make the totals differ, such as by a score that adds the outcome "
                "(uncredited_groups keeps counting)"
            )

    def _failing_groups(self, step: int, metrics: RolloutMetrics) -> Iterator[str]:
        """A warning about groups in which every episode fails. A random failure spares some members of a group. A
        failure caused by the task spares none."""
        self._failing.append(metrics)
        self._said_failing -= 1
        failing = [window for window in self._failing if window.failed_groups]
        failed, groups = sum(window.failed_groups for window in failing), sum(window.groups for window in self._failing)
        often = len(failing) >= _FAILING_STEPS and failed >= _FAILING_SHARE * groups
        if not often or not metrics.failed_groups or self._said_failing > 0:
            return
        self._said_failing = _WINDOW
        places = sum((Counter(window.failed_at) for window in failing), Counter[str]())
        named = ", ".join(place for place, _ in places.most_common(2)) or "no known line"
        yield (
            f"{_steps(step, len(self._failing))}: every episode of {failed} in {groups} groups failed, so their tasks "
            f"are never learned; most failures at {named}: fix that, or leave these tasks out"
        )

    def _new_tool_errors(self, step: int, metrics: RolloutMetrics) -> Iterator[str]:
        new = {kind: count for kind, count in metrics.tool_errors.items() if kind not in self._tool_errors}
        self._tool_errors.update(new)
        if new:
            yield (
                f"step {step}: a tool raised what no tool should: {_listed(new)}; the model reads it as an "
                "answer; the log has the first traceback (raise ToolError to speak to the model)"
            )


_FAR, _ERRORS = 2.0, 3.0


def learned_by_heart(learned: Sequence[float], apart: Sequence[float]) -> str | None:
    """The warning about a warm start, from the mean losses per token of learned demonstrations and of held-out
    demonstrations (`apart`). None if the losses are alike: the held-out loss is at most twice the learned loss, or the
    difference may be chance.

    A difference may be chance up to three standard errors of the difference of the means.
    """
    mean, other = statistics.fmean(learned), statistics.fmean(apart)
    error = math.sqrt(sum(statistics.pvariance(losses) / max(len(losses) - 1, 1) for losses in (learned, apart)))
    if other <= _FAR * mean or other - mean <= _ERRORS * error:
        return None
    return (
        f"the warm start has learned its demonstrations by heart: their loss is {mean:.3f} a token, that of "
        f"{len(apart)} that were kept apart {other:.3f}"
    )


def _steps(last: int, count: int) -> str:
    return f"step {last}" if count == 1 else f"steps {last - count + 1} to {last}"


def _failed(metrics: RolloutMetrics) -> str:
    return f"; {metrics.failed_episodes} of {metrics.episodes} episodes failed" if metrics.failed_episodes else ""


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
