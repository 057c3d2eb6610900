"""The program of a worker that is a child process. At the end the worker closes its Envs, within a limited time."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from agentrl._util import child
from agentrl.workers.player import Player, answered

_CLOSE_S = 35.0
"""The maximum of seconds for closing all Envs without a driver. A single Env has `limits.close_s`, by default 30."""


async def _serve(connection: Connection, parent: int) -> None:
    outbox, player, tasks = child.Outbox(connection), Player(), set[asyncio.Task[None]]()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    async def answer(number: int, method: str, arguments: Any) -> None:
        outcome = await answered(player, method, arguments)
        if number:
            outbox.put(pickle.dumps((number, outcome), protocol=pickle.HIGHEST_PROTOCOL))

    def begin(request: tuple[int, str, Any]) -> None:
        task = loop.create_task(answer(*request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        try:
            for message in child.of_parent(connection, parent):
                loop.call_soon_threadsafe(begin, pickle.loads(message))
        finally:
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, name="agentrl-requests", daemon=True).start()
    await ended.wait()
    _be_silent()
    await asyncio.wait([asyncio.create_task(player.close())], timeout=_CLOSE_S)


def _be_silent() -> None:
    """Discard all output of this process, because nobody reads it any more. A failed print must not disturb the closing
    of Envs."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    parent, descriptor = map(int, sys.argv[1:])
    child.run(lambda: asyncio.run(_serve(Connection(descriptor), parent)))
