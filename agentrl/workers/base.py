"""The interfaces of workers: the job of a worker, and the driver's connection to a worker."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import ConfigError, InfraError

START_S = 300.0
"""The most seconds for a worker to be ready: the worker imports the Env, and calls `share`."""


class WorkerLostError(InfraError):
    """The process of a worker has ended. The message has the worker's name and the cause."""


class NoPlaceError(ConfigError):
    """No machine has room for a worker."""


class Job(Protocol):
    """The work of a worker. The async context manager that `JobOrder.opener` returns opens the job."""

    async def play(self, request: Any, aborted: Callable[[], bool]) -> Any:
        """Do the work of a request. Returns a value that can be pickled. `aborted` returns the abort flag of the
        rollout that sent the request."""
        ...

    def status(self) -> Any:
        """The present state of the worker's episodes, as a value that can be pickled."""
        ...


@dataclass(frozen=True, slots=True)
class JobOrder:
    """The description of a worker's job, which can be sent to the worker."""

    opener: str
    """The path of a function. The function gets `config`, and returns an async context manager that opens a Job."""
    config: Any

    def encoded(self) -> bytes:
        """The description as bytes. Raises ConfigError if a part cannot be sent."""
        return encoded(self, "the configuration of the workers")


def encoded(value: Any, subject: str) -> bytes:
    """A value as bytes. Raises ConfigError if the value cannot be sent to a process; the message begins with
    `subject`."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:  # the pickle boundary: any object may be in there
        problem = " ".join(str(exc).split())
        raise ConfigError(
            f"{subject} cannot be sent to a worker: {problem:.200}; use plain data there, or workers: 0"
        ) from exc


class WorkerLink(Protocol):
    """The driver's connection to a worker."""

    def name(self) -> str:
        """The worker's name in messages, such as `worker 1 (process 4711)`."""
        ...

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker's `Player`, and wait for the result.

        Raises WorkerLostError if the worker has ended, and the errors of the method.
        """
        ...

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for the result. Has no effect on an ended worker."""
        ...

    @property
    def lost(self) -> asyncio.Future[WorkerLostError]:
        """A future that is done as soon as the process has ended."""
        ...

    def last_words(self) -> str:
        """The last lines that the worker printed. Empty if this process does not have these lines."""
        ...

    async def end(self) -> None:
        """End the process. The worker closes its Envs first, if possible. Safe to call twice."""
        ...


class Transport(Protocol):
    """Starts workers: as processes of this machine, or as Ray actors."""

    async def check(self, count: int) -> None:
        """Raises ConfigError if `count` workers cannot run."""
        ...

    async def open(self, number: int) -> WorkerLink:
        """Start a worker. The worker is ready as soon as its method `begin` has returned. Raises NoPlaceError."""
        ...
