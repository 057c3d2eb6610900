"""The worker's side, which is the same for each transport: opens the job, and handles the driver's messages."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from agentrl import errors
from agentrl._util.loading import load_object
from agentrl.errors import AgentRLError
from agentrl.workers.base import Job, JobOrder, encoded

_GC_THRESHOLDS = (20_000, 50, 100)
"""The thresholds of Python's garbage collector, higher than the defaults, because live episodes are many long-lived
objects."""

Outcome = tuple[bytes | None, "tuple[str, str, str] | None"]
"""The result of a method: a pickled value and None, or None and an error (class, text and traceback)."""


class Player:
    """Plays episodes for a driver. Each public method handles a message from the driver. All methods run in the same
    event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._playing: dict[int, asyncio.Future[Any]] = {}
        self._aborted = -1
        """The last epoch that the driver has aborted."""
        self._job: Job | None = None

    async def begin(self, order: bytes, search_path: Sequence[str]) -> int:
        """Open the job, and return the id of this process. Raises the errors of opening the job."""
        sys.path.extend(folder for folder in search_path if folder not in sys.path)
        job: JobOrder = pickle.loads(order)
        opening = asyncio.ensure_future(self._stack.enter_async_context(load_object(job.opener)(job.config)))
        self._job = await self._held(-1, opening)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return os.getpid()

    async def play(self, key: int, epoch: int, aborted: int, request: bytes) -> Any:
        """The job's result for a request. `epoch` is the number of the request's rollout, and `aborted` the last epoch
        that the driver has aborted."""
        assert self._job is not None, "the driver waits until this worker is ready"
        self.abort(aborted)
        playing = self._job.play(pickle.loads(request), lambda: epoch <= self._aborted)
        return await self._held(key, asyncio.ensure_future(playing))

    async def _held(self, key: int, task: asyncio.Future[Any]) -> Any:
        self._playing[key] = task
        try:
            return await task
        finally:
            del self._playing[key]

    def cancel(self, key: int) -> None:
        """Cancel a request whose result nobody waits for any more. The Env of the request is closed."""
        if (task := self._playing.get(key)) is not None:
            task.cancel()

    def abort(self, epoch: int) -> None:
        """Abort the episodes of this epoch and of earlier epochs. Episodes of later epochs continue."""
        self._aborted = max(self._aborted, epoch)

    async def status(self) -> Any:
        return None if self._job is None else self._job.status()

    async def close(self) -> None:
        """Cancel all episodes, so that their Envs close, and then close the job."""
        tasks = list(self._playing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._stack.aclose()


async def answered(player: Player, method: str, arguments: Sequence[Any]) -> Outcome:
    """Call a method of the player. Returns the outcome in a form for sending."""
    try:
        result_or_coroutine = getattr(player, method)(*arguments)
        result = await result_or_coroutine if asyncio.iscoroutine(result_or_coroutine) else result_or_coroutine
        return encoded(result, "the answer of an episode"), None
    except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - the boundary of the process: the driver raises the error
        return None, _described(exc)


def _described(exc: BaseException) -> tuple[str, str, str]:
    import traceback

    class_name = next((cls.__name__ for cls in type(exc).__mro__ if _is_own(cls)), "")
    text = str(exc) if class_name else f"{type(exc).__name__}: {exc}"
    return class_name, text, "".join(traceback.format_exception(exc))


def _is_own(cls: type) -> bool:
    return issubclass(cls, AgentRLError) and getattr(errors, cls.__name__, None) is cls


def result_of(outcome: Outcome, worker: str) -> Any:
    """The value of an outcome. If the outcome is an error, raises this error: agentrl's own errors with the same class,
    all others as RuntimeError with the worker's traceback."""
    result, error = outcome
    if error is not None:
        name, text, traceback = error
        if name:
            raise getattr(errors, name)(text)
        raise RuntimeError(f"{worker}: {text}\n{traceback}")
    assert result is not None
    return pickle.loads(result)
