"""Workers as processes of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from agentrl.workers.base import WorkerLostError
from agentrl.workers.messages import MessageStream
from agentrl.workers.player import result_of

log = logging.getLogger("agentrl")

_PROGRAM = "from agentrl.workers.child import main; main()"
_END_S = 5.0
"""Seconds for a process to end by itself, before a kill."""
_LINES = 60
"""How many of a worker's last lines are kept for an error message."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Workers compute little: a pool of threads in each worker would only disturb the other workers."""


class PipeTransport:
    """Starts workers as child processes.

    Workers end with this process, even after a kill. Ctrl-C does not reach workers: this process closes all workers.
    Printed lines appear on this process's stderr, each line with the worker's number.
    """

    async def check(self, count: int) -> None:
        cores = os.cpu_count() or count
        if count > cores:
            log.warning("%d workers on %d cores: each needs a core of its own", count, cores)

    async def open(self, number: int) -> PipeLink:
        """Start a process. Raises OSError if the machine cannot."""
        process = WorkerProcess(number)
        try:
            return PipeLink(process, await MessageStream.over(process.socket))
        except BaseException:
            process.kill()
            raise


class WorkerProcess:
    """The child process, a thread for the printed lines, and a thread that waits for the end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(descriptor), str(number)],
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            start_new_session=True,  # Ctrl-C is for the driver, and the driver closes the workers
        )
        theirs.close()
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.ended: Future[int] = Future()
        """The exit status, as soon as the process has ended. The last lines are known by then."""
        self._printer = self._thread(self._print)
        self._thread(self._wait)

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def _thread(self, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"agentrl-worker-{self.number}", daemon=True)
        thread.start()
        return thread

    def _print(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            for raw in printed:
                line = raw.decode(errors="replace").rstrip("\n")
                self.lines.append(line)
                with suppress(OSError, ValueError):  # a closed terminal must not stop the worker
                    sys.stderr.write(f"worker {self.number}: {line}\n")

    def _wait(self) -> None:
        status = self._process.wait()
        self._printer.join(1.0)  # a program started by the worker may hold stderr open
        self.ended.set_result(status)


class PipeLink:
    """The connection to a worker in a child process."""

    def __init__(self, process: WorkerProcess, stream: MessageStream) -> None:
        self._process, self._stream = process, stream
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._lost: asyncio.Future[WorkerLostError] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    @property
    def lost(self) -> asyncio.Future[WorkerLostError]:
        return self._lost

    def name(self) -> str:
        return str(self._process)

    async def ask(self, method: str, *arguments: Any) -> Any:
        if self._lost.done():
            raise self._lost.result().with_traceback(None)
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._stream.send((number, method, arguments))
        try:
            return result_of(await answer, self.name())
        finally:
            self._answers.pop(number, None)

    def tell(self, method: str, *arguments: Any) -> None:
        self._stream.send((0, method, arguments))

    def last_words(self) -> str:
        return "\n".join(self._process.lines)

    async def end(self) -> None:
        """Close the connection, so the process ends by itself; otherwise kill the process."""
        self._stream.close()
        await self._ended_soon()
        await asyncio.wait([self._reading, self._watching])

    async def _read(self) -> None:
        """Settle the answers, until the connection ends."""
        with suppress(EOFError):
            while True:
                number, outcome = await self._stream.receive()
                answer = self._answers.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(outcome)

    async def _watch(self) -> None:
        """Note the end of the process. The connection alone does not tell: children of the process may hold the
        connection open.
        """
        ended = asyncio.wrap_future(self._process.ended)
        waited: list[asyncio.Future[Any]] = [ended, self._reading]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        self._lose(await self._ended_soon())

    async def _ended_soon(self) -> int:
        """The exit status of a process without a connection: the process ends by itself, or is killed."""
        ended = asyncio.wrap_future(self._process.ended)
        await asyncio.wait([ended], timeout=_END_S)
        if not ended.done():
            self._process.kill()
        return await ended

    def _lose(self, status: int) -> None:
        lost = WorkerLostError(f"{self._process} ended {_how(status)}")
        if not self._lost.done():
            self._lost.set_result(lost)
        self._stream.close()
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(lost)


def _how(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def _python_path() -> str:
    """The import path for the process: this agentrl first, then the present import path."""
    package_folder = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, (package_folder, os.environ.get("PYTHONPATH", ""))))
