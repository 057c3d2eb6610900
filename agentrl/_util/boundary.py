"""The boundary between an episode and foreign code (hooks, engine, template). Errors there become a Failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from agentrl._util.concurrency import is_cancelled
from agentrl._util.loading import definition, own_frames
from agentrl.errors import Boundary, ConfigError, EngineLostError, Failure, LedgerError, ResumeError, TemplateError

watcher: ContextVar[Callable[[Boundary], contextlib.AbstractContextManager[Any]] | None] = ContextVar(
    "agentrl_boundary_watcher", default=None
)
"""A context manager that a host opens around each crossing in its task, for example a span of its traces."""


class FailedError(Exception):
    """Carries a Failure out of an episode; `Episode.run` records it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


@contextlib.contextmanager
def at_boundary(name: Boundary, *, data: bool = False, hook: Callable[..., Any] | None = None) -> Iterator[None]:
    """Turn exceptions into a FailedError that names the boundary, except those that must end the run.

    `data`: an episode's own messages are rendered, so a TemplateError blames them and not the template.
    `hook`: the hook that is called, or whose result is read. If no line of the user's code raised, the error names
    its definition.
    """
    watch = watcher.get()
    try:
        with contextlib.nullcontext() if watch is None else watch(name):
            yield
    except (ConfigError, EngineLostError, LedgerError, ResumeError, FailedError) as exc:
        if not (data and isinstance(exc, TemplateError)):
            raise
        raise FailedError(Failure.of(exc, name)) from exc
    except asyncio.CancelledError as exc:
        # The hook's own task was cancelled, not this episode. The host must not take it for the end of the run.
        if is_cancelled():
            raise
        raise FailedError(Failure.of(exc, name)) from exc
    except Exception as exc:
        raise FailedError(_located(Failure.of(exc, name), hook)) from exc


def _located(failure: Failure, hook: Callable[..., Any] | None) -> Failure:
    """The failure, with the hook's line if no line of the user's code raised: then the hook returned a wrong type."""
    if hook is None or failure.kind != "bug" or own_frames(failure.traceback):
        return failure
    place = definition(hook)
    return replace(failure, error=f"{failure.error} ({place})") if place else failure
