"""Programs of this machine that end with this process, even by `kill -9`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from typing import Any

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
"""Runs a program that is killed, with all that it started, once stdin ends. ssh alone would wait for the commands whose
connections it forwards.
"""


async def start(*command: str, **options: Any) -> Process:
    """Start a program with a pipe as its stdin. `options` are those of asyncio.create_subprocess_exec."""
    return await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _WATCHED, "sh", *command, stdin=PIPE, start_new_session=True, **options
    )  # in a session of its own, because Ctrl-C is for this program alone


async def end(process: Process) -> None:
    """Kill it, with all that it started."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
