"""Where an episode meets an Env's hooks, the engine and the template: what breaks there becomes a Failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from agentrl._concurrency import is_cancelled
from agentrl.errors import Boundary, ConfigError, Failure, LedgerError, ResumeError, TemplateError

watcher: ContextVar[Callable[[Boundary], contextlib.AbstractContextManager[Any]] | None] = ContextVar(
    "agentrl_boundary_watcher", default=None
)
"""What a host opens around each crossing in its task, say a span of its traces."""


class FailedError(Exception):
    """Carries a Failure out of an episode; `Episode.run` records it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


@contextlib.contextmanager
def at_boundary(name: Boundary, *, data: bool = False) -> Iterator[None]:
    """Turn whatever is raised here into a FailedError that names the boundary, unless it must end the run.

    `data`: what is rendered is an episode's own, so that a TemplateError is about it and not about the template.
    """
    watch = watcher.get()
    try:
        with contextlib.nullcontext() if watch is None else watch(name):
            yield
    except (ConfigError, LedgerError, ResumeError, FailedError) as exc:
        if not (data and isinstance(exc, TemplateError)):
            raise
        raise FailedError(Failure.of(exc, name)) from exc
    except asyncio.CancelledError as exc:
        # What a hook waited for was cancelled, not this episode: its host must not take it for the end of the run.
        if is_cancelled():
            raise
        raise FailedError(Failure.of(exc, name)) from exc
    except Exception as exc:
        raise FailedError(Failure.of(exc, name)) from exc
