"""The streams of training tasks, from a single data set or from several. A stream is shuffled in each epoch, and can be
resumed."""

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
    """Excludes and counts the tasks whose prompt has more than `most` tokens. `length` returns the tokens of a task's
    prompt. `warn` gets a line about the first excluded task."""

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
    """A stream of tasks. In each epoch, (seed, epoch) fixes the order. The position can be saved and restored.

    The stream ends after `epochs`; if None, never. Without `shuffle`, each epoch has the order of the data. The tasks
    of a `TaskFile` stay on disk, and take eight bytes of memory each.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, *, epochs: int | None = None, shuffle: bool = True) -> None:
        if not tasks:
            raise ConfigError("a TaskStream needs at least one task")
        self._tasks, self._seed, self._epochs = tasks if isinstance(tasks, TaskFile) else list(tasks), seed, epochs
        self._shuffle = shuffle
        self._rows = tasks.fingerprint if isinstance(tasks, TaskFile) else "".join(map(_digest, self._tasks))
        """A digest of the data, which every checkpoint has: eight hexadecimal digits for each task, or sixteen for a
        whole file."""
        self._limit: PromptFilter | None = None
        self._too_long: set[int] = set()
        """The rows whose prompts are too long for `limit_prompts`."""
        self._epoch = self._position = 0
        self._order = self._shuffled()

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks, which may come from two or more epochs."""
        return [drawn.task for drawn in (self.draw() for _ in range(n)) if drawn is not None]

    def draw(self) -> DrawnTask | None:
        """Draw the next task, with its row and epoch. Returns None after the last of `epochs`.

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
        """Raises ConfigError if the prompts of all tasks are too long."""
        if len(self._too_long) == len(self._tasks):
            raise ConfigError("every prompt is longer than max_prompt_tokens; raise it")

    def limit_prompts(self, limit: PromptFilter) -> None:
        """From now on, leave out tasks with too long prompts."""
        self._limit = limit

    def task(self, row: int) -> Task:
        """The task of a row of the data. The first row is 0."""
        return self._tasks[row]

    def metrics(self) -> dict[str, JSON]:
        """A metric with the number of tasks whose prompts are too long. Empty without a limit."""
        return {} if self._limit is None else {**self._limit.metrics()}

    def state_dict(self) -> dict[str, JSON]:
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed, "rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None:
        """Continue at the position of `state_dict`. Raises ConfigError if the seed or a task has changed, unless
        `accept_changes` is set."""
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
        """The changed rows as text. "" if no row has changed, or if the changes are unknown."""
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
    """Draws tasks from several sources by weight. After any number of draws, each source has its share, within one
    task.

    Each source has separate epochs. A source that has ended is left out. The rows of the sources are numbered in
    sequence: the row of a task is the row in the source, plus the `sizes` of all earlier sources.
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
        """A metric with the number of tasks whose prompts are too long. Empty without a limit."""
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
