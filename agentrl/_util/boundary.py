"""The boundary between an episode and foreign code (hooks, engine, template). Errors there become a Failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from agentrl._util.activity import Activity, activity
from agentrl._util.concurrency import is_cancelled
from agentrl._util.loading import definition, own_frames
from agentrl.errors import Boundary, ConfigError, EngineLostError, Failure, LedgerError, ResumeError, TemplateError

watcher: ContextVar[Callable[[Boundary], contextlib.AbstractContextManager[Any]] | None] = ContextVar(
    "agentrl_boundary_watcher", default=None
)
"""Makes a context manager for each call of foreign code, such as a span of a trace. A host sets the variable in its
task."""


class FailedError(Exception):
    """Carries a Failure out of an episode. `Episode.run` records the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


def at_boundary(
    name: Boundary, *, data: bool = False, hook: Callable[..., Any] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Turn exceptions into a FailedError that names the boundary. Exceptions that must end the run pass.

    `data`: the text of the episode is rendered, so a TemplateError blames the text, not the template. `hook`: the
    hook that was called, or whose result is checked. If no line of the user's code raised, the error names the hook's
    definition.
    """
    crossing, watch = _Crossing(name, data, hook), watcher.get()
    return crossing if watch is None else _watched(crossing, watch)


@dataclass(slots=True)
class _Crossing:
    """The context manager of `at_boundary`. A class is four times as fast as a generator, and a turn calls foreign code
    nine times."""

    name: Boundary
    data: bool
    hook: Callable[..., Any] | None
    _activity: Activity | None = None
    _entry: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> None:
        self._activity = activity.get()
        if self._activity is not None:
            self._entry = self._activity.begin(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._activity is not None:
            self._activity.end(self._entry)
        if isinstance(exc, Exception | asyncio.CancelledError) and not self._passes(exc):
            failure = Failure.of(exc, self.name)
            as_is = isinstance(exc, TemplateError | asyncio.CancelledError)
            raise FailedError(failure if as_is else _located(failure, self.hook)) from exc

    def _passes(self, exc: BaseException) -> bool:
        """Whether the exception must end the run, and so is raised unchanged."""
        if isinstance(exc, asyncio.CancelledError):
            # Or was the hook's own task cancelled? For the host this is not the end of the run.
            return is_cancelled()
        ends = isinstance(exc, ConfigError | EngineLostError | LedgerError | ResumeError | FailedError)
        return ends and not (self.data and isinstance(exc, TemplateError))


@contextlib.contextmanager
def _watched(
    crossing: _Crossing, watch: Callable[[Boundary], contextlib.AbstractContextManager[Any]]
) -> Iterator[None]:
    with crossing, watch(crossing.name):
        yield


def _located(failure: Failure, hook: Callable[..., Any] | None) -> Failure:
    """The failure, with the hook's line if no line of the user's code raised: then the hook returned a wrong type."""
    if hook is None or failure.kind != "bug" or own_frames(failure.traceback):
        return failure
    place = definition(hook)
    return replace(failure, error=f"{failure.error} ({place})") if place else failure
