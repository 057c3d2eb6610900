"""Cancel a coroutine at each of its awaits in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any


class _Stepped:
    """Awaits a coroutine, and has its task cancelled at the suspension of this number, counted from 0."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int) -> None:
        self.coroutine, self.left = coroutine, number

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.coroutine.__await__()
        while True:
            try:
                future = steps.send(None)
            except StopIteration as stop:
                return stop.value
            task = asyncio.current_task()
            assert task is not None
            if self.left == 0:
                asyncio.get_running_loop().call_soon(task.cancel)
            self.left -= 1
            try:
                yield future
            except BaseException as exc:  # noqa: BLE001 - the coroutine decides what to do with it
                future = steps.throw(exc)
                # What it awaits while it cleans up is not counted.
                yield future
                return (yield from steps)


async def at_each_await(make: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[int]:
    """Run it again and again, cancelled at its first await, its second and so on, until it ends by itself.

    Yields after each run that was cancelled.
    """
    number = 0
    while True:
        stepped = _Stepped(make(), number)

        async def run(stepped: _Stepped = stepped) -> None:
            await stepped

        task = asyncio.create_task(run())
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
            assert stepped.left >= 0, "it was cancelled, but ended as if it were not"
            return
        yield number
        number += 1
