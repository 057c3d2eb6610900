"""A separate task for each async context manager, and a task for the hooks of an Env.

The task that entered a cancel scope (a task group has one) must exit the scope, and is cancelled when the scope fails.
The task of an episode cannot exit scopes: the episode may end before its Env is closed, as an Env can be stored for
later, and only the host may cancel the task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

from agentrl._util.concurrency import safe_to_raise
from agentrl.errors import InfraError, one_line

T = TypeVar("T")
log = logging.getLogger("agentrl")

_abandoned: set[asyncio.Task[Any]] = set()
"""Abandoned tasks, kept because the event loop holds tasks only weakly."""


class OwnTask:
    """A task that runs coroutines one after the other. The first use starts the task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[_Call[Any] | None] = asyncio.Queue()

    async def run(self, coroutine: Awaitable[T], *, patience: float | None = None) -> T:
        """The coroutine's result or exception. A cancelled caller cancels the coroutine and waits for its end.

        A coroutine that ignores its cancellation for `patience` seconds is abandoned.
        """
        if self._task is asyncio.current_task():
            return await coroutine
        if self._task is None or self._task.done():
            self._queue = asyncio.Queue()
            self._task = asyncio.create_task(self._work(self._queue), name=self._name)
        call = _Call(coroutine, self._task)
        self._queue.put_nowait(call)
        try:
            return await wait_through_cancellation(call.future, call.cancel, patience=patience)
        finally:
            if not call.future.done():
                self._queue.put_nowait(None)
                abandon(self._task)
                self._task = None

    async def stop(self) -> None:
        """Wait for the running coroutine, then end the task."""
        if self._task is not None and not self._task.done():
            self._queue.put_nowait(None)
            await asyncio.wait([self._task])
        self._task = None

    async def _work(self, queue: asyncio.Queue[_Call[Any] | None]) -> None:
        while (call := await self._next(queue)) is not None:
            if await call.run():
                return

    async def _next(self, queue: asyncio.Queue[_Call[Any] | None]) -> _Call[Any] | None:
        try:
            return await queue.get()
        except asyncio.CancelledError:
            return await survive_cancellation(queue.get(), _LAST_MOMENT_S)


class _Call(Generic[T]):
    def __init__(self, coroutine: Awaitable[T], task: asyncio.Task[None]) -> None:
        self._coroutine, self._task = coroutine, task
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(_consume_exception)
        self._started, self._cancels = False, 0

    def cancel(self) -> None:
        self._cancels += 1
        if self._started:
            self._task.cancel()

    async def run(self) -> bool:
        """Run the coroutine, and set the result of `future`. Returns whether the task must be replaced, as foreign code
        has cancelled the task and may do so again at any time."""
        if self._cancels:
            if inspect.iscoroutine(self._coroutine):
                self._coroutine.close()
            self.future.set_exception(asyncio.CancelledError())
            return False
        self._started = True
        try:
            result = await self._coroutine
        except BaseException as exc:
            self.future.set_exception(exc)
            if isinstance(exc, KeyboardInterrupt | SystemExit):
                raise
        else:
            self.future.set_result(result)
        for _ in range(self._cancels):
            self._task.uncancel()
        return self._task.cancelling() > 0


class Resources:
    """Async context managers. A separate task enters, keeps and exits each of them."""

    def __init__(self, patience: float = 1.0) -> None:
        self._patience = patience
        """Seconds that the owner has to begin closing after the event loop ends. After these seconds, the resources
        close by themselves."""
        self._closing = asyncio.Event()
        self._opening: set[_HeldResource[Any]] = set()
        self._resources: list[_HeldResource[Any]] = []

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Enter a resource and return its value. A cancelled caller cancels the opening and waits for its end."""
        holding = _HeldResource(resource, self._closing, self._patience)
        self._opening.add(holding)
        try:
            value, context = await wait_through_cancellation(holding.entered, holding.task.cancel)
        finally:
            self._opening.discard(holding)
            if holding.is_held():
                self._resources.append(holding)
        for variable in context:  # later hooks see the context variables, as without a task
            if holding.before.get(variable, _UNSET) is not context[variable]:
                variable.set(context[variable])
        return value

    def begin_close(self) -> None:
        """Announce that the owner will close the resources. The resources then wait for the owner even while the
        event loop ends."""
        self._closing.set()

    async def close(self) -> list[BaseException]:
        """Exit the resources, newest first, and return their errors. A cancellation is passed on, after the exits."""
        self.begin_close()
        errors = list[BaseException]()
        while self._resources:
            holding = self._resources.pop()
            holding.leave()
            await wait_through_cancellation(holding.task, holding.task.cancel, raises=False)
            errors += holding.error()
        return errors

    async def release(self, until: float, seconds: float, then: Callable[[], None]) -> list[BaseException]:
        """Exit the resources, newest first, until the loop's time is `until`, and return their errors. Abandon the
        rest.

        Abandoned resources get `seconds` more. Then they are cancelled in the background. `then` is called after the
        last resource has ended or was given up.
        """
        resources = [*self._opening, *reversed(self._resources)]
        self._opening, self._resources = set(), []
        for holding in resources:
            await holding.leave_by(until)
        if running := [holding.task for holding in resources if not holding.task.done()]:
            await asyncio.wait(running, timeout=min(seconds, _LAST_MOMENT_S))
        if pending := [task for task in running if not task.done()]:
            abandon(asyncio.create_task(_end(pending, seconds, then)), *pending)
        else:
            then()
        return _errors_of_release(resources, seconds)


class SharedResource(Generic[T]):
    """A resource that all users on one event loop share: the value of an async context manager. The resource is opened
    on first use, and again after it was closed or broke. An event loop that ends closes the resource."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._resource: _HeldResource[T] | None = None

    async def get(self) -> T:
        """The resource. Raises the error if opening fails; the next call tries again. Cancelling a caller does not
        cancel the opening."""
        async with self._lock:
            if self._resource is None or self._resource.task.done():
                # In an empty context: the resource outlives the episode of its first user.
                self._resource = Context().run(_HeldResource, self._make(), asyncio.Event(), 0.0)
            resource = self._resource
        await asyncio.wait([resource.entered])
        if isinstance(resource.entered.exception(), asyncio.CancelledError):
            raise InfraError(f"{resource.name} was closed before it was open")
        return resource.entered.result()[0]

    async def drop(self, value: T) -> None:
        """Close a broken resource, unless a newer resource is open already."""
        if self._resource is not None and self._resource.is_held() and self._resource.entered.result()[0] is value:
            await self.close()

    async def close(self) -> None:
        """Close the resource. A running opening is cancelled."""
        async with self._lock:
            resource, self._resource = self._resource, None
            if resource is not None:
                resource.leave()
                await asyncio.wait([resource.task])
                for error in resource.error():
                    log.warning("closing %s failed: %s", resource.name, one_line(error))


class _HeldResource(Generic[T]):
    def __init__(self, resource: AbstractAsyncContextManager[T], closing: asyncio.Event, patience: float) -> None:
        self._resource, self._closing, self._patience = resource, closing, patience
        self._leave = asyncio.Event()
        function = getattr(resource, "func", None)  # set by @asynccontextmanager
        self.name: str = getattr(function, "__qualname__", type(resource).__qualname__)
        self.entered: asyncio.Future[tuple[T, Context]] = asyncio.get_running_loop().create_future()
        self.entered.add_done_callback(_consume_exception)
        self.late = False
        self.before = copy_context()
        self.task = asyncio.create_task(self._hold(), name=f"resource {self.name}")
        self.task.add_done_callback(self._ended)

    async def _hold(self) -> None:
        try:
            async with self._resource as value:
                if not self.entered.done():
                    self.entered.set_result((value, copy_context()))
                await self._wait()
        except BaseException as exc:  # passed on, except SystemExit, which would end the event loop
            error = safe_to_raise(exc, f"in {self.name}")
            if not self.entered.done():
                self.entered.set_exception(error)
            elif isinstance(exc, SystemExit):
                raise error from exc
            else:
                raise

    async def _wait(self) -> None:
        try:
            await self._leave.wait()
        except asyncio.CancelledError:
            if not self._patience:
                raise
            await survive_cancellation(self._closing.wait(), self._patience)
            await self._leave.wait()

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not self.entered.done():  # cancelled before it began: the loop ends
            self.entered.set_exception(asyncio.CancelledError())

    def leave(self) -> None:
        self._leave.set()
        if not self.entered.done():
            self.task.cancel()

    async def leave_by(self, until: float) -> None:
        """Ask the resource to exit, and wait until `until`. Then cancel an exit that began before `until`."""
        now = asyncio.get_running_loop().time()
        self.leave()
        await asyncio.wait([self.task], timeout=max(0.0, until - now))
        if now < until and not self.task.done():
            self.late = True
            self.task.cancel()

    @property
    def left_in_time(self) -> bool:
        return self.task.done() and not self.late

    def is_held(self) -> bool:
        return self.entered.done() and not self.entered.cancelled() and self.entered.exception() is None

    def error(self) -> list[BaseException]:
        if self.task.cancelled():
            return [asyncio.CancelledError(f"{self.name} was cancelled from within")]
        error = self.task.exception()
        return [error] if error else []


def _errors_of_release(resources: Sequence[_HeldResource[Any]], seconds: float) -> list[BaseException]:
    """The errors of resources that exited in time, and one TimeoutError for all other resources."""
    errors = [error for holding in resources if holding.left_in_time for error in holding.error()]
    if late := [holding.name for holding in resources if not holding.left_in_time]:
        errors.append(TimeoutError(f"{', '.join(late)}: not released within close_s, {seconds:g} s; still open"))
    return errors


async def survive_cancellation(coming: Coroutine[Any, Any, T], patience: float) -> T:
    """Ignore one cancellation of the running task, and wait up to `patience` seconds for `coming`.

    An ending event loop cancels all tasks once, and the owners of the tasks then close them in order. A failed cancel
    scope cancels a task again at once.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    try:
        async with asyncio.timeout(patience):
            return await coming
    except TimeoutError:
        raise asyncio.CancelledError from None


async def wait_through_cancellation(
    future: asyncio.Future[T], cancel: Callable[[], object], *, patience: float | None = None, raises: bool = True
) -> T:
    """The result of `future`. If the caller is cancelled, `cancel` is called, and CancelledError is raised at the end.

    After a cancellation the wait lasts at most `patience` seconds, if set.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future], timeout=patience if cancelled else None)
            if cancelled and not future.done():
                break
        except asyncio.CancelledError as exc:
            cancelled = exc
            cancel()
    if cancelled is not None:
        raise cancelled
    if not raises and (future.cancelled() or future.exception()):
        return None  # type: ignore[return-value]
    return future.result()


def abandon(*tasks: asyncio.Task[Any]) -> None:
    """Stop waiting for tasks, and ignore their errors."""
    for task in tasks:
        _abandoned.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    _consume_exception(task)


def _consume_exception(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an exception that was never retrieved."""
    if not future.cancelled():
        future.exception()


async def _end(tasks: list[asyncio.Task[None]], seconds: float, then: Callable[[], None]) -> None:
    try:
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=seconds)
    finally:
        then()


_LAST_MOMENT_S = 1.0
"""Seconds that a cancelled resource has to end, and a resource whose exit began only after the deadline."""

_UNSET = object()
