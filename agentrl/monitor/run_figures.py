"""The figures of a run from which `verdicts` are read. All come from small files of the run folder, so the figures of a
running run can be read, too."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

WINDOW = 5
"""The number of steps at each end of a run over which figures are averaged."""
_LEAST_TASKS, _LEAST_STEPS = 8, 3
"""The fewest tasks, and the fewest steps at each end of a run, that show a change."""
_ERRORS_HELD_OUT, _ERRORS_SAMPLED = 2.6, 3.0
"""The standard errors above which a change is no chance: 2.6 is an interval of 99 %, as a run has many evaluations. The
steps of a run are not independent, so the sampled reward needs more."""
_LEAST_CHANGE = 0.02
"""The least change, as a share of the largest reward."""
_AT_THE_TOP = 0.95
"""A mean reward of at least this share of the largest reward is at the top."""


@dataclass(frozen=True, slots=True)
class RewardChange:
    """A mean reward before and after, and whether the difference is more than chance."""

    before: float
    after: float
    error: float
    """The standard error of the difference."""
    errors: float
    """The number of standard errors above which a difference is more than chance."""
    tasks: int = 0
    """The number of tasks that are compared with themselves; 0 for steps of a run."""
    since: int = 0
    """The step of `before`."""
    until: int = 0
    """The step of `after`."""

    def _beyond(self, difference: float) -> bool:
        least = _LEAST_CHANGE * max(abs(self.before), abs(self.after))
        return difference > max(self.errors * self.error, least)

    @property
    def rose(self) -> bool:
        return self._beyond(self.after - self.before)

    @property
    def fell(self) -> bool:
        return self._beyond(self.before - self.after)

    def __str__(self) -> str:
        """Such as `from 0.875 (step 0) to 0.575 (step 40), on the same 40 tasks: -0.300 ± 0.191`. A difference up to
        the last number counts as chance."""
        tasks = f", on the same {self.tasks} tasks" if self.tasks else ""
        change = f"{self.after - self.before:+.3f} ± {self.errors * self.error:.3f}"
        return f"from {self.before:.3f} (step {self.since}) to {self.after:.3f} (step {self.until}){tasks}: {change}"


def paired(before: Mapping[str, Any], after: Mapping[str, Any]) -> RewardChange | None:
    """The change between two evaluations (lines of evaluations.jsonl), each task compared with itself. None if fewer
    than eight tasks were scored in both."""
    rewards = zip(before.get("rewards", ()), after.get("rewards", ()), strict=False)
    pairs = [(old, new) for old, new in rewards if old is not None and new is not None]
    if len(pairs) < _LEAST_TASKS:
        return None
    olds, news = zip(*pairs, strict=True)
    error = statistics.stdev(new - old for old, new in pairs) / math.sqrt(len(pairs))
    means = statistics.fmean(olds), statistics.fmean(news)
    return RewardChange(*means, error, _ERRORS_HELD_OUT, len(pairs), before["step"], after["step"])


def largest_fall(evaluations: Sequence[Mapping[str, Any]]) -> RewardChange | None:
    """The significant fall of the last evaluation below the evaluation at the start of RL, or below the best. None if
    there is none."""
    if len(evaluations) < 2:
        return None
    *earlier, last = evaluations
    first = [line for line in earlier if line["step"] == 0][-1:]
    best = max((line for line in earlier if line["step"] or not first), key=_mean, default=None)
    changes = [paired(line, last) for line in (*first, best) if line is not None and line["step"] < last["step"]]
    return max((change for change in changes if change is not None and change.fell), key=_fall, default=None)


def _fall(change: RewardChange) -> float:
    return change.before - change.after


def _mean(line: Mapping[str, Any]) -> float:
    return -math.inf if line["mean"] is None else line["mean"]


@dataclass(frozen=True, slots=True)
class EqualAnswers:
    """Episodes with the same answer, among the episodes of the last steps."""

    text: str
    count: int
    episodes: int
    tasks: int
    """The number of tasks with such an episode."""
    pay: float
    """The mean reward of these episodes."""


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run. Everything is plain JSON, so that a test can plant any run."""

    steps: Sequence[Mapping[str, Any]] = ()
    """The lines of metrics.jsonl."""
    evaluations: Sequence[Mapping[str, Any]] = ()
    """The lines of evaluations.jsonl."""
    episodes: Sequence[Mapping[str, Any]] = ()
    """The outlines of the episodes of the last step (see Outline): task, reward, answer."""
    demonstrations: Mapping[str, int] = field(default_factory=dict)
    """`episodes`: the number of recorded demonstrations; `lost`: the number without a reward."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The figures in a run folder. Files that are missing, and incomplete lines, count as empty."""
        steps, events = list(_lines(folder / "metrics.jsonl")), _lines(folder / "events.jsonl")
        last = f"step_{steps[-1]['step']:06d}.jsonl" if steps else ""
        demonstrations = [event["demonstrations"] for event in events if "demonstrations" in event]
        return cls(
            steps,
            list(_lines(folder / "evaluations.jsonl")),
            list(_lines(folder / "index" / last)) if last else [],
            demonstrations[-1] if demonstrations else {},
        )

    def first(self, name: str) -> float:
        """The mean of a metric over the first steps."""
        return _average(self.steps[: self._ends], name)

    def last(self, name: str) -> float:
        """The mean of a metric over the last steps."""
        return _average(self.steps[-self._ends :], name)

    @property
    def _ends(self) -> int:
        """The number of steps at each end."""
        return min(WINDOW, max(len(self.steps) // 2, 1))

    @cached_property
    def sampled(self) -> RewardChange | None:
        """The change of the sampled reward between the first and the last steps. None for a run of fewer than six
        steps."""
        ends = self._ends
        if ends < _LEAST_STEPS:
            return None
        first, last = ([step["reward_mean"] for step in part] for part in (self.steps[:ends], self.steps[-ends:]))
        error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / ends)
        means = statistics.fmean(first), statistics.fmean(last)
        return RewardChange(*means, error, _ERRORS_SAMPLED, 0, self.steps[0]["step"], self.steps[-1]["step"])

    @cached_property
    def began(self) -> Mapping[str, Any] | None:
        """The evaluation at the start of RL: after the warm start, if there was one."""
        return next((line for line in reversed(self.evaluations) if line["step"] == 0), None)

    @cached_property
    def ended(self) -> Mapping[str, Any] | None:
        """The last evaluation, if any step of RL preceded it."""
        return self.evaluations[-1] if self.evaluations and self.evaluations[-1]["step"] else None

    @cached_property
    def held_out(self) -> RewardChange | None:
        """The change of the held-out reward by RL."""
        return paired(self.began, self.ended) if self.began is not None and self.ended is not None else None

    @cached_property
    def fall(self) -> RewardChange | None:
        """The significant fall of the held-out reward, or without evaluations of the sampled reward."""
        if self.held_out is not None:
            return largest_fall(self.evaluations)
        return self.sampled if self.sampled is not None and self.sampled.fell else None

    @cached_property
    def learned(self) -> bool:
        """Whether the run did its work: a reward rose, and the held-out reward did not fall."""
        changes = (self.held_out, self.sampled)
        return self.fall is None and any(change is not None and change.rose for change in changes)

    @cached_property
    def _rewards(self) -> Sequence[float]:
        """The rewards of the last step and of the evaluations."""
        rewards = [episode.get("reward") for episode in self.episodes]
        rewards += [reward for line in self.evaluations for reward in line.get("rewards", ())]
        return [reward for reward in rewards if reward is not None] or [0.0]

    @property
    def top(self) -> float:
        """The largest reward of an episode in the last step and in the evaluations."""
        return max(self._rewards)

    @property
    def bottom(self) -> float:
        """The least reward of an episode in the last step and in the evaluations."""
        return min(self._rewards)

    @property
    def at_the_top(self) -> bool:
        """Whether the sampled reward leaves little to learn. A largest reward below 1 may be far from the top."""
        return self.top >= 1 and self.last("reward_mean") >= _AT_THE_TOP * self.top

    @property
    def held_out_at_the_top(self) -> bool:
        """Whether the last evaluation leaves little to learn."""
        mean = None if self.ended is None else self.ended["mean"]
        return mean is not None and self.top >= 1 and bool(mean >= _AT_THE_TOP * self.top)

    def share(self, name: str, of: str) -> float:
        """The sum of a count over the last steps, as a share of another count."""
        steps = self.steps[-self._ends :]
        return float(sum(step.get(name, 0) for step in steps) / max(sum(step.get(of, 0) for step in steps), 1))

    def answers(self, same: Mapping[str, Sequence[Mapping[str, Any]]]) -> EqualAnswers | None:
        """The largest of these sets of episodes, by text. None without a set."""
        if not same:
            return None
        text, episodes = max(same.items(), key=lambda item: len(item[1]))
        pay = statistics.fmean(episode["reward"] for episode in episodes)
        return EqualAnswers(text, len(episodes), len(self.episodes), len({e.get("task") for e in episodes}), pay)


def _average(steps: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [step[name] for step in steps if step.get(name) is not None]
    return statistics.fmean(values) if values else 0.0


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file of JSON."""
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
