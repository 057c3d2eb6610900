"""Start programs on this machine that end when this process ends, even by `kill -9`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from typing import Any

_PIECE = 256 << 10
_WATCHED = """
exec 3<&0
"$@" <&3 3<&- &
child=$!
{ read -r _ <&3; kill -9 0; } > /dev/null 2>&1 &
watcher=$!
exec 3<&-
wait "$child"
code=$?
kill "$watcher"
wait "$watcher" 2> /dev/null
exit "$code"
"""
"""A shell script that runs a program. At the end of stdin, the program is killed with all its children. ssh alone would
wait for the commands behind forwarded connections."""


async def start(*command: str, **options: Any) -> Process:
    """Start a program with a pipe as stdin. `options` are the options of asyncio.create_subprocess_exec."""
    return await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _WATCHED, "sh", *command, stdin=PIPE, start_new_session=True, **options
    )  # in a separate session, because Ctrl-C is for this program alone


async def end(process: Process) -> None:
    """Kill a program with all its children."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        with contextlib.suppress(RuntimeError):  # another task reads this stream
            while stream is not None and await stream.read(_PIECE):
                continue  # asyncio's `wait` never returns while unread output fills a stream
    await process.wait()
