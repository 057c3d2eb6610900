"""The interface of a source of fresh tasks, which a buffer draws from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.types import JSON, Task


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A task with its row and epoch in the data."""

    task: Task
    row: int
    """The number of the task's row in the data. The first row is 0."""
    epoch: int


class PromptFilter(Protocol):
    """Tells whether a task's prompt is short enough; see `PromptLimit`."""

    def allows(self, task: Task) -> bool: ...

    def metrics(self) -> Mapping[str, JSON]: ...


class TaskSource(Protocol):
    """The source of a buffer's fresh tasks, such as `TaskStream`."""

    def draw(self) -> DrawnTask | None:
        """Draw the next task. Returns None at the end of finite data."""
        ...

    def task(self, row: int) -> Task:
        """The task of a row that was drawn before."""
        ...

    def metrics(self) -> Mapping[str, JSON]: ...

    def limit_prompts(self, limit: PromptFilter) -> None:
        """From now on, leave out tasks that the limit excludes."""
        ...

    def state_dict(self) -> Mapping[str, JSON]: ...

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None: ...
