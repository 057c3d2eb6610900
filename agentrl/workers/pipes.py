"""Workers as child processes on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from agentrl._util.children import ChildProcess, Requests, how_ended, import_path
from agentrl.workers.base import WorkerLostError
from agentrl.workers.player import result_of

log = logging.getLogger("agentrl")

_PROGRAM = "from agentrl.workers.child import main; main()"
_LINES = 60
"""The number of a worker's last lines that are stored for an error message."""
_VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""The environment variables of a worker. Workers compute little: a pool of threads in each worker would only disturb
the other workers."""


class PipeTransport:
    """Starts workers as child processes.

    Workers end with this process, even after a kill. Ctrl-C does not reach workers: this process closes all workers.
    Lines that workers print appear on this process's stderr, each line with the worker's number.
    """

    async def check(self, count: int) -> None:
        cores = os.cpu_count() or count
        if count > cores:
            log.warning("%d workers on %d cores: each needs a core of its own", count, cores)

    async def open(self, number: int) -> PipeLink:
        """Start a process. Raises OSError if the machine cannot start it."""
        return PipeLink(WorkerProcess(number))


class WorkerProcess(ChildProcess):
    """A child process, and a thread that reads the printed lines."""

    def __init__(self, number: int) -> None:
        variables = {**_VARIABLES, "PYTHONPATH": import_path()}
        super().__init__(["-c", _PROGRAM], variables=variables, output=subprocess.PIPE)
        self.number = number
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._printer = threading.Thread(target=self._print, name=f"agentrl-worker-{number}", daemon=True)
        self._printer.start()

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    def loss(self, status: int) -> WorkerLostError:
        self._printer.join(1.0)  # a program started by the worker may hold stderr open
        return WorkerLostError(f"{self} ended {how_ended(status)}")

    def _print(self) -> None:
        assert self.output is not None
        with self.output as printed:
            for raw in printed:
                line = raw.decode(errors="replace").rstrip("\n")
                self.lines.append(line)
                with suppress(OSError, ValueError):  # a closed terminal must not stop the worker
                    sys.stderr.write(f"worker {self.number}: {line}\n")


class PipeLink:
    """The connection to a worker in a child process."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._requests = Requests(process, lambda outcome: result_of(outcome, str(process)), process.loss)
        self.lost = asyncio.wrap_future(self._requests.ended)

    def name(self) -> str:
        return str(self._process)

    async def ask(self, method: str, *arguments: Any) -> Any:
        return await self._requests.answer(method, *arguments)

    def tell(self, method: str, *arguments: Any) -> None:
        self._requests.tell(method, *arguments)

    def last_words(self) -> str:
        return "\n".join(self._process.lines)

    async def end(self) -> None:
        await self._requests.end()
        await asyncio.wait([self.lost])
