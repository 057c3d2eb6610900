"""The interfaces of workers: a worker's job, and the driver's connection."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import ConfigError, InfraError

START_S = 300.0
"""Seconds for a worker to be ready: the worker imports the Env, and calls `share`."""


class WorkerLostError(InfraError):
    """The process of a worker has ended. The message gives the worker, and the cause."""


class NoPlaceError(ConfigError):
    """No machine has room for a worker."""


class Job(Protocol):
    """The work of a worker. Opened by the async context manager of `JobOrder.opener`."""

    async def play(self, request: Any, aborted: Callable[[], bool]) -> Any:
        """The answer to one request, as a picklable value. `aborted` is the flag of the requesting rollout."""
        ...

    def status(self) -> Any:
        """The present work of the worker's episodes, as a picklable value."""
        ...


@dataclass(frozen=True, slots=True)
class JobOrder:
    """The work of a worker, as a value to send."""

    opener: str
    """The path of a function of `config`. The function returns an async context manager for a Job."""
    config: Any

    def encoded(self) -> bytes:
        """Raises ConfigError if a part of the order cannot be sent."""
        return encoded(self, "the configuration of the workers")


def encoded(value: Any, subject: str) -> bytes:
    """The value as bytes. Raises ConfigError with `subject` for a value that cannot be sent to a process."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:  # the pickle boundary: any object may be in there
        problem = " ".join(str(exc).split())
        raise ConfigError(
            f"{subject} cannot be sent to a worker: {problem:.200}; use plain data there, or workers: 0"
        ) from exc


class WorkerLink(Protocol):
    """The connection of the driver to one worker."""

    def name(self) -> str:
        """The worker's name in messages, such as `worker 1 (process 4711)`."""
        ...

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker's `Player`.

        Raises WorkerLostError if the worker has ended, and the errors of the method.
        """
        ...

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for the result. Has no effect on an ended worker."""
        ...

    @property
    def lost(self) -> asyncio.Future[WorkerLostError]:
        """Done as soon as the process has ended."""
        ...

    def last_words(self) -> str:
        """The last lines printed by the worker, if known here."""
        ...

    async def end(self) -> None:
        """End the process, after the worker has closed its Envs or failed to. Safe to call twice."""
        ...


class Transport(Protocol):
    """Starts workers: as processes of this machine, or as Ray actors."""

    async def check(self, count: int) -> None:
        """Raises ConfigError if so many workers cannot run."""
        ...

    async def open(self, number: int) -> WorkerLink:
        """Start a worker. The worker is ready once `begin` has answered. Raises NoPlaceError."""
        ...
