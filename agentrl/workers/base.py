"""The interfaces of workers: what a worker runs, and how its driver reaches it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import ConfigError, InfraError

START_S = 300.0
"""Seconds for a worker to be ready: it imports the Env, and calls its `share`."""


class WorkerLostError(InfraError):
    """The process of a worker has ended. The message gives the worker, and how it ended."""


class NoPlaceError(ConfigError):
    """No machine has room for a worker."""


class Job(Protocol):
    """What a worker runs. Opened by the async context manager that `JobOrder.opener` names."""

    async def play(self, request: Any, aborted: Callable[[], bool]) -> Any:
        """The answer to one request, which can be pickled. `aborted` is the flag of the rollout that sent it."""
        ...

    def status(self) -> Any:
        """What the worker's episodes are doing now, which can be pickled."""
        ...


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What a worker runs, as a value that can be sent."""

    opener: str
    """The path of a function of `config`. It returns an async context manager, which gives a Job."""
    config: Any

    def encoded(self) -> bytes:
        """Raises ConfigError if a part of it cannot be sent."""
        return encoded(self, "the configuration of the workers")


def encoded(value: Any, subject: str) -> bytes:
    """The value as bytes. Raises ConfigError, which names `subject`, if it cannot be sent to another process."""
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
        """The worker as messages name it, such as `worker 1 (process 4711)`."""
        ...

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker's `Player`.

        Raises WorkerLostError if the worker has ended, and the errors of the method.
        """
        ...

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for it. Nothing happens if the worker has ended."""
        ...

    @property
    def lost(self) -> asyncio.Future[WorkerLostError]:
        """Done as soon as the process has ended."""
        ...

    def last_words(self) -> str:
        """The last lines that the worker has printed, if they are known here."""
        ...

    async def end(self) -> None:
        """End the process, which has closed its Envs or will not. Safe to call twice."""
        ...


class Transport(Protocol):
    """Starts workers: as processes of this machine, or as Ray actors."""

    async def check(self, count: int) -> None:
        """Raises ConfigError if so many workers cannot run."""
        ...

    async def open(self, number: int) -> WorkerLink:
        """Start a worker. It is ready once `begin` has answered. Raises NoPlaceError."""
        ...
