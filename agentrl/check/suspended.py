"""Count the awaits at which an Env's coroutines wait, and cancel the episode exactly at a chosen await."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import Any, NamedTuple

from agentrl._util.findings import Place
from agentrl.check.places import AuthorCode
from agentrl.env.env import Env, tools_of

_HOOKS = ("tools", "reset", "step", "exec_tool", "last_turn", "score", "run")


class Wait(NamedTuple):
    """An await at which a hook waits."""

    hook: str
    place: Place


class Suspensions:
    """All waits of an episode, in order. At the wait with index `number`, `cancel` is called."""

    def __init__(
        self, author: AuthorCode, number: int | None = None, cancel: Callable[[], object] = lambda: None
    ) -> None:
        self._author, self._number, self._cancel = author, number, cancel
        self.waits: list[Wait] = []
        self.cancelled: Wait | None = None
        self.ended: str = ""
        """How the cancelled hook ended: "cancelled", "returned", or the raised error."""
        self.error: BaseException | None = None

    def attach(self, env: Env) -> None:
        """Count the waits in the hooks, tools and resources of an Env. Called before the episode begins."""
        names = [name for name in _HOOKS if self._author.wrote(name) and hasattr(env, name)]
        names += [spec.attribute for spec in tools_of(env).values()]
        for name in names:
            setattr(env, name, self._counted(name, getattr(env, name)))
        enter = env.enter
        setattr(env, "enter", lambda resource: enter(_Resource(self, resource)))  # noqa: B010 - a method is replaced

    def _counted(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(hook):

            @wraps(hook)
            async def counted(*args: Any, **kwargs: Any) -> Any:
                return await CountedCoroutine(self, name, hook(*args, **kwargs))

            return counted

        loop = asyncio.get_running_loop()

        @wraps(hook)
        def counted_start(*args: Any, **kwargs: Any) -> Any:
            if self._counts(Wait(name, _begin(hook))):
                self.ended = "cancelled"  # a thread is not cancelled; its hook ends by itself
                loop.call_soon_threadsafe(self._cancel)
            return hook(*args, **kwargs)

        return counted_start

    def _counts(self, wait: Wait) -> bool:
        """Count a wait. Returns whether the episode is cancelled here."""
        self.waits.append(wait)
        if self._number is None or len(self.waits) - 1 != self._number or self.cancelled is not None:
            return False
        self.cancelled = wait
        return True

    def suspends(self, name: str, coroutine: Any) -> bool:
        place = self._author.of_awaited(coroutine)
        if place is None or not self._counts(Wait(name, place)):
            return False
        asyncio.get_running_loop().call_soon(self._cancel)
        return True


class CountedCoroutine:
    """A coroutine whose waits are counted. At the chosen wait, the coroutine waits until it is cancelled."""

    def __init__(self, counter: Suspensions, name: str, coroutine: Coroutine[Any, Any, Any], seen: Any = None) -> None:
        self._counter, self._name, self._coroutine = counter, name, coroutine
        self._seen = seen or coroutine
        self._chosen = False

    def __await__(self) -> Generator[Any, Any, Any]:
        counted_coroutine = self._coroutine  # `AuthorCode.of_awaited` continues there
        step: Callable[[], Any] = partial(counted_coroutine.send, None)
        try:
            while True:
                waited = step()
                step = yield from self._wait(waited)
        except StopIteration as done:
            self._note("returned")
            return done.value
        except BaseException as exc:
            self._note("cancelled" if isinstance(exc, asyncio.CancelledError) else type(exc).__name__, exc)
            raise

    def _wait(self, waited: Any) -> Generator[Any, Any, Callable[[], Any]]:
        """Wait for the future `waited` of the coroutine. Returns a function that continues the coroutine."""
        if self._counter.suspends(self._name, self._seen):
            self._chosen = True
            try:
                yield from asyncio.get_running_loop().create_future()
            except asyncio.CancelledError as exc:
                if waited is None or waited.done() or not waited.cancel():
                    return partial(self._coroutine.throw, exc)
                # Cancel what it waits for, as a task does. It wakes up once that has ended.
        try:
            value = yield waited
        except BaseException as exc:  # noqa: BLE001 - it is passed on to the coroutine
            return partial(self._coroutine.throw, exc)
        return partial(self._coroutine.send, value)

    def _note(self, ended: str, error: BaseException | None = None) -> None:
        if self._chosen:
            self._counter.ended, self._counter.error = ended, error


class _Resource:
    """A resource of the Env. Waits while the resource opens are counted, too."""

    def __init__(self, counter: Suspensions, resource: AbstractAsyncContextManager[Any]) -> None:
        self._counter, self._resource = counter, resource
        self.func = getattr(resource, "func", type(resource))

    async def __aenter__(self) -> Any:
        opening = self._resource.__aenter__()
        if not inspect.iscoroutine(opening):
            return await opening
        return await CountedCoroutine(self._counter, "a resource", opening, getattr(self._resource, "gen", None))

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._resource.__aexit__(*exc)


def _begin(hook: Callable[..., Any]) -> Place:
    code = inspect.unwrap(getattr(hook, "__func__", hook)).__code__
    return Place(code.co_filename, code.co_firstlineno)
