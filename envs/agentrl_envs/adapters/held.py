"""HeldResource: a resource that all episodes of an event loop share. A broken resource is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class HeldResource(Generic[T]):
    """Opened at the first `get`, in a separate task: a task group must be exited by the task that entered the group."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._leave = asyncio.Event()

    async def get(self) -> T:
        """The resource. Raises the errors of opening; the next call tries again."""
        async with self._lock:
            if self._value is None:
                entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
                self._leave = asyncio.Event()
                self._task = asyncio.create_task(self._hold(entered, self._leave))
                self._value = await entered
            return self._value

    async def drop(self, value: T) -> None:
        """Close a broken resource, unless a new resource is open already."""
        async with self._lock:
            if self._value is value:
                await self._close()

    async def close(self) -> None:
        async with self._lock:
            await self._close()

    async def _close(self) -> None:
        self._leave.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # it broke: its users got the error
        self._task = self._value = None

    async def _hold(self, entered: asyncio.Future[T], leave: asyncio.Event) -> None:
        try:
            async with self._make() as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as exc:
            if entered.done():
                raise
            entered.set_exception(exc)
