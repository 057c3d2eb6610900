"""Runtime: an Env's thread, task, resources and limits, and the way an episode calls its hooks."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import Any, TypeVar

from agentrl._util.concurrency import Deadline, Worker, safe_to_raise, uncounted
from agentrl._util.resources import OwnTask, Resources
from agentrl.errors import BadCall, InfraError, one_line
from agentrl.sandbox import HasAllowedHosts
from agentrl.types import JSON, Limits, MaybeAwait

__all__ = ["Runtime", "uncounted"]

T = TypeVar("T")
_DEFAULT_LIMITS = Limits()


class Runtime:
    """The thread, the task, the resources and the limits of one Env.

    An `async def` hook runs in the Env's task, a plain hook in the Env's thread. Both are made on first use. So `reset`
    may open a resource that is bound to a task or a thread, and `close` may close the resource. A hook can cancel only
    the Env's task, never the host's. The default hooks (`inline`) run without task and thread.
    """

    def __init__(self, name: str, inline: frozenset[Callable[..., Any]] = frozenset()) -> None:
        self.name = name
        self.limits = _DEFAULT_LIMITS
        self.rng = Random()
        self.offered: tuple[str, ...] = ()
        """Names of the offered tools."""
        self.tool_errors: dict[str, int] = {}
        """Unexpected exceptions in tools, counted by tool and type. Each is probably a bug."""
        self.first_tool_error: Exception | None = None
        self.call_errors: list[BadCall] = []
        """Calls of the last action that name no tool or have wrong arguments."""
        self.before_close: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Called before the `close` hook, to end other parts of the episode, such as a running agent."""
        self._boxes: list[HasAllowedHosts] = []
        self._inline = inline
        self._resources = Resources()
        self._thread = Worker(f"env-{name}")
        self._task = OwnTask(f"env-{name}")

    async def hook(self, hook: Callable[..., MaybeAwait[T]], *args: Any, timeout: float | None = None) -> T:
        """Call a hook as the episode does. Raises TimeoutError with the hook's name after `timeout` seconds.

        A thread cannot be stopped: a plain `def` beyond the deadline occupies the Env's thread until the end. An `async
        def` that ignores cancellation for `Limits.close_s` is abandoned.
        """
        return await self._in_time(hook, timeout, self._run(hook, args, self._in_task))

    async def call(self, function: Callable[..., MaybeAwait[T]], *args: Any, timeout: float | None = None) -> T:
        """Call a function from within a hook: `async def` in the running task, plain `def` in the Env's thread."""
        return await self._in_time(function, timeout, self._run(function, args))

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        entered = await self._resources.enter(resource)
        if isinstance(entered, HasAllowedHosts):
            self._boxes.append(entered)
        return entered

    def info(self) -> dict[str, JSON]:
        """Counts for `Trajectory.info`: errors of tools, and hosts that sandboxes refused. Empty counts are left
        out."""
        refused: Counter[str] = Counter()
        for box in self._boxes:
            if isinstance(box.refused, Mapping):  # of the user's own resources it may be something else
                refused.update(box.refused)
        info = {"tool_errors": dict(self.tool_errors), "refused_hosts": dict(refused)}
        return {name: counts for name, counts in info.items() if counts}

    def leave_thread(self) -> bool:
        """If an abandoned function occupies the thread, run later hooks in a new thread. Returns whether this was
        necessary."""
        if not self._thread.occupied:
            return False
        self._thread.stop()
        self._thread = Worker(f"env-{self.name}")
        return True

    async def close(self, hook: Callable[[], MaybeAwait[None]]) -> None:
        """End other parts of the episode, call the `close` hook, exit the resources, newest first, then end task and
        thread. No failure skips the rest.

        All steps together have `Limits.close_s`. Unfinished steps are abandoned afterwards. Raises a single error
        unchanged, and several errors as an ExceptionGroup.
        """
        loop, seconds = asyncio.get_running_loop(), self.limits.close_s
        self._resources.begin_close()
        until, errors = loop.time() + seconds, list[BaseException]()
        if self.before_close is not None:
            errors += await self._error(self._in_time(self.before_close, seconds, self.before_close()))
        errors += await self._error(self._in_time(hook, seconds, self._run(hook, (), self._in_task, always=True)))
        errors += await self._resources.release(until, seconds, self._thread.stop)
        await self._task.stop()
        failures = [_closing_error(error) for error in errors]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup(f"closing {self.name}: " + "; ".join(map(one_line, failures)), failures)

    @staticmethod
    async def _error(closing: Coroutine[Any, Any, None]) -> list[BaseException]:
        """Await a step of closing, and return the errors in a list. So the next step runs in any case."""
        try:
            await closing
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - the close boundary: the rest comes next
            return [exc]
        return []

    def _in_task(self, coroutine: Awaitable[T]) -> Awaitable[T]:
        return self._task.run(coroutine, patience=self.limits.close_s)

    async def _in_time(self, hook: Callable[..., Any], timeout: float | None, running: Coroutine[Any, Any, T]) -> T:
        if timeout is None:
            return await running  # under the caller's deadline, if there is one
        try:
            async with Deadline(timeout) as deadline:
                return await running
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            raise TimeoutError(f"{self.name}.{getattr(hook, '__name__', hook)} {deadline.said()}") from exc

    async def _run(
        self,
        hook: Callable[..., MaybeAwait[T]],
        args: tuple[Any, ...],
        run: Callable[[Awaitable[T]], Awaitable[T]] | None = None,
        *,
        always: bool = False,
    ) -> T:
        inline = getattr(hook, "__func__", None) in self._inline
        if inline or inspect.iscoroutinefunction(hook.func if isinstance(hook, partial) else hook):
            result = hook(*args)
        else:
            result = await self._thread.run(partial(hook, *args), always=always)
        if not inspect.isawaitable(result):
            return result
        if inline:
            return await result
        return await (_carried(result) if run is None else run(_carried(result)))


async def _carried(awaitable: Awaitable[T]) -> T:
    """Await a hook, and return its result or its exception. SystemExit is replaced, because SystemExit would end the
    whole event loop."""
    try:
        return await awaitable
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as exc:
        raise safe_to_raise(exc, "in a hook") from exc


def _closing_error(error: BaseException) -> Exception:
    if isinstance(error, asyncio.CancelledError):  # the hook cancelled a task and awaited it
        return InfraError("closing was cancelled from within")
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
