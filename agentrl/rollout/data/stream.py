"""The streams of training tasks: shuffled in each epoch, resumable, of a single data set or of several."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from random import Random
from typing import Any

from agentrl._util.content import content
from agentrl.errors import ConfigError
from agentrl.rollout.data.row_files import Permutation
from agentrl.rollout.data.source import DrawnTask, PromptFilter, TaskSource
from agentrl.rollout.data.tasks import TaskFile
from agentrl.types import JSON, Task


class PromptLimit:
    """Passes over tasks with more than `most` tokens in the prompt, and counts them. `warn` gets a line about the
    first.

    `length` counts the tokens of a task's prompt.
    """

    def __init__(self, most: int, length: Callable[[Task], int], warn: Callable[[str], None]) -> None:
        self._most, self._length, self._warn = most, length, warn
        self._passed: set[str] = set()

    def allows(self, task: Task) -> bool:
        length = self._length(task)
        if length > self._most and not self._passed:
            self._warn(
                f"the prompt of task {task.id} has {length} tokens, more than max_prompt_tokens ({self._most}); such "
                "tasks are not drawn, and metrics.jsonl counts them (too_long_prompts)"
            )
        if length > self._most:
            self._passed.add(task.id)
        return length <= self._most

    def metrics(self) -> dict[str, JSON]:
        return {"too_long_prompts": len(self._passed)}


class TaskStream:
    """A stream of tasks, shuffled in each epoch by (seed, epoch). The position can be saved and restored.

    The stream ends after `epochs`; None: never. Without `shuffle` each epoch has the order of the data. A `TaskFile`
    stays on disk, with a computed order: eight bytes a row are in memory.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, *, epochs: int | None = None, shuffle: bool = True) -> None:
        if not tasks:
            raise ConfigError("a TaskStream needs at least one task")
        self._tasks, self._seed, self._epochs = tasks if isinstance(tasks, TaskFile) else list(tasks), seed, epochs
        self._shuffle = shuffle
        self._rows = tasks.fingerprint if isinstance(tasks, TaskFile) else "".join(map(_digest, self._tasks))
        """Eight hexadecimal digits for each task, or sixteen for a whole file. Every checkpoint holds the digits."""
        self._limit: PromptFilter | None = None
        self._too_long: set[int] = set()
        """The rows that `limit_prompts` passed over."""
        self._epoch = self._position = 0
        self._order = self._shuffled()

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks, across the end of an epoch if necessary."""
        return [drawn.task for drawn in (self.draw() for _ in range(n)) if drawn is not None]

    def draw(self) -> DrawnTask | None:
        """The next task, with its place in the data. None after the last of `epochs`.

        Raises ConfigError if the prompts of all tasks are too long.
        """
        while True:
            if self._position == len(self._order):
                self._check_lengths()
                if self._epoch + 1 == self._epochs:
                    return None
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled()
            row = self._order[self._position]
            self._position += 1
            task = self._tasks[row]
            if self._limit is None or self._limit.allows(task):
                return DrawnTask(task, row, self._epoch)
            self._too_long.add(row)

    def _check_lengths(self) -> None:
        """Raises ConfigError if all tasks are too long."""
        if len(self._too_long) == len(self._tasks):
            raise ConfigError("every prompt is longer than max_prompt_tokens; raise it")

    def limit_prompts(self, limit: PromptFilter) -> None:
        """Pass over tasks with too long prompts."""
        self._limit = limit

    def task(self, row: int) -> Task:
        """The task of a row of the data."""
        return self._tasks[row]

    def metrics(self) -> dict[str, JSON]:
        """The number of tasks with too long prompts. Empty without a limit."""
        return {} if self._limit is None else {**self._limit.metrics()}

    def state_dict(self) -> dict[str, JSON]:
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed, "rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None:
        """Continue at the position of `state_dict`. Raises ConfigError if the seed changed, or a task, unless
        accepted."""
        changes = self._changes(state.get("rows"))
        if changes and not accept_changes:
            raise ConfigError(
                f"{changes} since the run began; restore the data, or add --accept-changed-data to continue with "
                "it as it is"
            )
        if state["seed"] != self._seed:
            raise ConfigError(f"the run began with seed {state['seed']}, not {self._seed}; restore it, or begin anew")
        self._epoch, self._position = state["epoch"], min(state["position"], len(self._tasks))
        self._order = self._shuffled()

    def _shuffled(self) -> Sequence[int]:
        if not self._shuffle:
            return range(len(self._tasks))
        if isinstance(self._tasks, TaskFile):
            return Permutation(len(self._tasks), f"{self._seed}/{self._epoch}")
        order = list(range(len(self._tasks)))
        Random(f"{self._seed}/{self._epoch}").shuffle(order)
        return order

    def _changes(self, before: str | None) -> str:
        """The changed rows in words. "" if no row has changed, or if the change is unknown."""
        now = self._rows
        if before is None or before == now:
            return ""
        if isinstance(self._tasks, TaskFile):
            return "the data changed"
        old, new = ([rows[i : i + _DIGITS] for i in range(0, len(rows), _DIGITS)] for rows in (before, now))
        if len(old) != len(new):
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
            return f"the data had {len(old)} rows and has {len(new)}, other ones from row {same + 1} on,"
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        named = ", ".join(f"{i + 1} (id {self._tasks[i].id})" for i in changed[:_NAMED])
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return f"{len(changed)} of {len(new)} rows of the data changed, row {named}{more},"


class Mixture:
    """Tasks of several sources by weight. After any number of draws, each source has its share, within one task.

    Each source has its own epochs. An ended source is left out. A task's row counts the rows of the sources before its
    own, as `sizes` gives them.
    """

    def __init__(self, sources: Sequence[TaskSource], sizes: Sequence[int], weights: Sequence[float]) -> None:
        if not sources or any(weight <= 0 for weight in weights):
            raise ConfigError("a mixture needs data, and weights above 0")
        self._sources, self._weights = list(sources), list(weights)
        self._first = [sum(sizes[:i]) for i in range(len(sizes))]
        self._drawn = [0] * len(sources)
        self._ended = [False] * len(sources)
        self._limit: PromptFilter | None = None

    def draw(self) -> DrawnTask | None:
        while not all(self._ended):
            open_sources = [i for i, ended in enumerate(self._ended) if not ended]
            chosen = min(open_sources, key=lambda i: ((self._drawn[i] + 1) / self._weights[i], i))
            drawn = self._sources[chosen].draw()
            if drawn is not None:
                self._drawn[chosen] += 1
                return DrawnTask(drawn.task, self._first[chosen] + drawn.row, drawn.epoch)
            self._ended[chosen] = True
        return None

    def task(self, row: int) -> Task:
        return self._of(row)[0].task(self._of(row)[1])

    def metrics(self) -> dict[str, JSON]:
        """The number of tasks with too long prompts. Empty without a limit."""
        return {} if self._limit is None else {**self._limit.metrics()}

    def limit_prompts(self, limit: PromptFilter) -> None:
        self._limit = limit
        for source in self._sources:
            source.limit_prompts(limit)

    def state_dict(self) -> dict[str, JSON]:
        return {"drawn": list(self._drawn), "sources": [dict(source.state_dict()) for source in self._sources]}

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None:
        for source, source_state in zip(self._sources, state["sources"], strict=True):
            source.load_state_dict(source_state, accept_changes=accept_changes)
        self._drawn, self._ended = list(state["drawn"]), [False] * len(self._sources)

    def _of(self, row: int) -> tuple[TaskSource, int]:
        chosen = max(i for i, first in enumerate(self._first) if first <= row)
        return self._sources[chosen], row - self._first[chosen]


_DIGITS, _NAMED = 8, 5


def _digest(task: Task) -> str:
    return hashlib.sha256(content(task).encode()).hexdigest()[:_DIGITS]
