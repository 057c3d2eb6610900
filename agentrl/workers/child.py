"""The program of a worker that is a child process. The arguments: an inherited socket, and the worker's number.

The program ends when the socket is closed, or when the parent is gone. At the end the worker closes its Envs, within a
bounded time.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from agentrl.workers.messages import MessageStream
from agentrl.workers.player import Player, answered

_POLL_S = 1.0
"""Seconds between two checks for the parent. A program started by the parent may hold the socket open."""
_CLOSE_S = 35.0
"""Seconds for Envs to be closed, once the driver is gone. An Env has `limits.close_s`, 30 by default."""


async def _serve(end: socket.socket) -> None:
    stream, player, tasks = await MessageStream.over(end), Player(), set[asyncio.Task[None]]()
    parent = os.getppid()

    async def answer(number: int, method: str, arguments: Any) -> None:
        outcome = await answered(player, method, arguments)
        if number:
            stream.send((number, outcome))

    async def read() -> None:
        with suppress(EOFError):
            while True:
                task = asyncio.create_task(answer(*await stream.receive()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def watch() -> None:
        while os.getppid() == parent:  # noqa: ASYNC110 - no event tells of the parent's end
            await asyncio.sleep(_POLL_S)

    await asyncio.wait([asyncio.create_task(read()), asyncio.create_task(watch())], return_when="FIRST_COMPLETED")
    _be_silent()
    await asyncio.wait([asyncio.create_task(player.close())], timeout=_CLOSE_S)


def _be_silent() -> None:
    """Silence this process, as nobody reads the output any more: a failed print must not disturb the closing of
    Envs.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # signals are for the driver, and the driver closes the workers
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    status = 1
    try:
        asyncio.run(_serve(socket.socket(fileno=descriptor)))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # the driver prints the error
        raise
    finally:
        atexit._run_exitfuncs()  # temporary folders are removed
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of hooks that hang must not keep the process
