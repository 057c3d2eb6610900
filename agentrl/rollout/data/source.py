"""The source of fresh tasks, as a buffer sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.types import JSON, Task


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A task with its place in the data."""

    task: Task
    row: int
    """The task's number in the data, from 0."""
    epoch: int


class PromptFilter(Protocol):
    """Whether a task's prompt is short enough; see `PromptLimit`."""

    def allows(self, task: Task) -> bool: ...

    def metrics(self) -> Mapping[str, JSON]: ...


class TaskSource(Protocol):
    """The source of a buffer's fresh tasks, such as `TaskStream`."""

    def draw(self) -> DrawnTask | None:
        """The next task. None at the end of finite data."""
        ...

    def task(self, row: int) -> Task:
        """A task that was drawn before."""
        ...

    def metrics(self) -> Mapping[str, JSON]: ...

    def limit_prompts(self, limit: PromptFilter) -> None:
        """Pass over tasks that the limit excludes."""
        ...

    def state_dict(self) -> Mapping[str, JSON]: ...

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None: ...
