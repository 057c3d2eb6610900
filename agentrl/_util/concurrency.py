"""A thread for blocking hooks, deadlines that do not count the wait for this thread, and a stricter `gather`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar, Token, copy_context
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from agentrl.errors import InfraError

T = TypeVar("T")
log = logging.getLogger("agentrl")


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines, in order. Unlike asyncio.gather, the first exception cancels the other coroutines and
    waits for their end."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as exc:
        raise exc.exceptions[0] from None
    return [task.result() for task in tasks]


class Deadline:
    """`asyncio.timeout` with a clock that can be stopped, so that time in a queue is not counted."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._timeout = seconds, asyncio.timeout(seconds)
        self._open = False
        self._token: Token[Deadline | None] | None = None
        self.queued = False
        """Whether the deadline expired while the function still waited for the thread."""

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._open, self._token = True, _deadline.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        if self._token is not None:
            _deadline.reset(self._token)
        await self._timeout.__aexit__(kind, exc, traceback)

    def expired(self) -> bool:
        return self._timeout.expired()

    def said(self) -> str:
        waited = "waited for an earlier call, which still runs, for" if self.queued else "took longer than"
        return f"{waited} {self._seconds:g} s"

    def left(self) -> float | None:
        """Seconds until the deadline expires. None without a deadline."""
        when = self._timeout.when() if self._open and not self.expired() else None
        return None if when is None else when - asyncio.get_running_loop().time()

    def set(self, seconds: float | None) -> None:
        """Let the deadline expire in `seconds`, or never with None. An expired deadline stays expired."""
        if self._open and not self.expired():
            self._timeout.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


_deadline: ContextVar[Deadline | None] = ContextVar("agentrl_deadline", default=None)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Stop the clock of the running hook's deadline inside the block, because the block waits in a queue."""
    deadline = _deadline.get()
    seconds = deadline.left() if deadline else None
    if deadline is None or seconds is None:
        yield
        return
    deadline.set(None)
    try:
        yield
    finally:
        deadline.set(seconds)


class _Job(Generic[T]):
    """A function for a Worker to run. The event loop owns the job; the thread only reads."""

    def __init__(self, function: Callable[[], T], *, always: bool) -> None:
        self.function, self.always = function, always
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.context = copy_context()
        self.given_up = False
        self.deadline = _deadline.get()
        self.seconds_left = self.deadline.left() if self.deadline else None

    def stop_clock(self) -> None:
        if self.deadline is not None and self.seconds_left is not None:
            self.deadline.set(None)

    def start_clock(self) -> None:
        if self.deadline is not None and self.seconds_left is not None:
            self.deadline.set(self.seconds_left)


class Worker:
    """A daemon thread that runs blocking functions in order. The first function starts the thread.

    Each owner has its own thread, because sqlite connections and synchronous browsers are bound to a thread. The thread
    is a daemon, because a function without an end must not keep the process alive (`ThreadPoolExecutor` joins its
    threads at exit).

    The clock of a function's `Deadline` stops while the thread runs other functions. If such a function exceeds its own
    deadline, the clock runs again, because the thread may never be free.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._pending: list[_Job[Any]] = []
        """Jobs in the order of the queue. The thread runs the first job."""
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def run(self, function: Callable[[], T], *, always: bool = False) -> T:
        """Run a function in the thread, and return its result or raise its exception. A cancelled function that has not
        started never starts, unless `always`.

        Raises InfraError if the thread cannot be started. A later call tries again.
        """
        if self._stopped:
            raise RuntimeError(f"{self._name} is closed; its thread has ended")
        self._start()
        job = _Job(function, always=always)
        if self._pending and not self._pending[0].given_up:
            job.stop_clock()
        self._pending.append(job)
        self._jobs.put(job)
        try:
            return await job.future
        finally:
            if job in self._pending:
                self._give_up(job)

    @property
    def occupied(self) -> bool:
        """Whether the thread still runs an abandoned function."""
        return bool(self._pending) and self._pending[0].given_up

    def stop(self) -> None:
        """Let the thread end after its present jobs. Returns at once."""
        self._stopped = True
        self._jobs.put(None)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            raise InfraError(f"{self._name}: {exc}; this process has too many threads") from exc
        self._thread = thread

    def _give_up(self, job: _Job[Any]) -> None:
        job.given_up = True
        if job is self._pending[0]:
            self._restart_clocks()
            return
        if job.deadline is not None:
            job.deadline.queued = job.deadline.expired()
        if not job.always:
            self._pending.remove(job)

    def _restart_clocks(self) -> None:
        """Start the clock of the running job. If the job was abandoned, start the clocks of all jobs."""
        for job in self._pending if self._pending[0].given_up else self._pending[:1]:
            job.start_clock()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.given_up and not job.always:
                self._report(job)
                continue
            try:
                result = job.context.run(job.function)
            except BaseException as exc:  # noqa: BLE001 - the thread boundary: the awaiting task raises it
                self._report(job, exc=safe_to_raise(exc, "in a thread"))
            else:
                self._report(job, result)

    def _report(self, job: _Job[Any], result: Any = None, exc: BaseException | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, the episode is over
            job.loop.call_soon_threadsafe(self._settle, job, result, exc)

    def _settle(self, job: _Job[Any], result: Any, exc: BaseException | None) -> None:
        if job in self._pending:
            self._pending.remove(job)
        if self._pending:
            self._restart_clocks()
        if job.future.done():
            if job.always and exc is not None:
                log.warning("%s: an abandoned hook failed", self._name, exc_info=exc)
            return
        if exc is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(exc)


def safe_to_raise(exc: BaseException, where: str) -> Exception | asyncio.CancelledError:
    """`exc`, or a RuntimeError in its place: a task refuses StopIteration, and SystemExit ends the event loop."""
    if isinstance(exc, Exception | asyncio.CancelledError) and not isinstance(exc, StopIteration):
        return exc
    return RuntimeError(f"{type(exc).__name__} {where}: {exc}")


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only the future for which the task waited.

    Only for the host's tasks. Hooks of an Env run in other tasks, so a hook can cancel only its own task.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
