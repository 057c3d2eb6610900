"""Processes for graders that block, loop or crash. Each call has a deadline, at which the process is killed.

A thread cannot be stopped, and a signal does not interrupt sympy inside a power of two large integers. So only the
death of a process ends such a grader. The processes start as a script, because `multiprocessing` would fork a program
with threads, or import the main script a second time.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from agentrl._util.children import ChildProcess, how_ended
from agentrl.errors import AgentRLError, InfraError
from agentrl.types import JSON

_START_S = 120.0
"""The most seconds to start a process and to import the grader."""
_MOST = 8
_SCRIPT = Path(__file__).with_name("_worker.py")


class GraderError(AgentRLError):
    """A grader in a process has a bug. The message is that of the grader's exception."""


class ProcessPool:
    """Up to `size` processes, started on demand. Any number of event loops and threads may use the pool."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or min(_MOST, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="agentrl-grader")
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    async def run(self, function: str, *args: JSON, seconds: float) -> JSON:
        """Call the function at `package.module:name` in a process, and return its result. The wait for a free process
        is not counted.

        Raises TimeoutError after `seconds`, InfraError if the process died, GraderError for any other exception. The
        process is killed and replaced at the deadline, and when the caller is cancelled.
        """
        job = _ProcessJob(function, args, seconds)
        running = self._threads.submit(self._run, job)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            job.cancel()
            raise

    def processes(self) -> list[int]:
        """The ids of the living processes."""
        with self._lock:
            return [process.pid for process in self._all]

    def close(self) -> None:
        """Kill all processes. Running calls raise InfraError."""
        with self._lock:
            self._closed, processes = True, list(self._all)
        for process in processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in processes:
            self._drop(process)

    def _run(self, job: _ProcessJob) -> JSON:
        process = self._take()
        try:
            result = job.run(process)
        except GraderError:
            self._give(process)
            raise
        except BaseException:
            self._drop(process)
            raise
        self._give(process)
        return result

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise InfraError("the grader's processes are closed: the program ends")
            if self._idle:
                return self._idle.pop()
            process = _Process()
            self._all.add(process)
            return process

    def _give(self, process: _Process) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(process)

    def _drop(self, process: _Process) -> None:
        process.end()
        process.connection.close()
        with self._lock:
            self._all.discard(process)


class _ProcessJob:
    """A call of a function in a process. Another thread may cancel the running call."""

    def __init__(self, function: str, args: Sequence[JSON], seconds: float) -> None:
        place, _, name = function.rpartition(":")
        self.function, self.seconds = f"{Path(place).name}:{name}", seconds
        self._request = json.dumps({"function": function, "args": args, "seconds": seconds}).encode()
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._cancelled = False

    def run(self, process: _Process) -> JSON:
        with self._lock:
            self._process = process
            if self._cancelled:
                raise InfraError(f"{self.function} was cancelled")
        try:
            answer = self._exchange(process)
        finally:
            with self._lock:
                self._process = None
        if "error" not in answer:
            return answer["result"]
        if answer["world"]:
            raise InfraError(f"{self.function}: {answer['error']}")
        raise GraderError(f"{self.function}: {answer['error']}")

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def _exchange(self, process: _Process) -> dict[str, JSON]:
        try:
            process.connection.send_bytes(self._request)
            answer = self._receive(process, _START_S, "be imported")
            if "ready" in answer:
                answer = self._receive(process, self.seconds, "grade")
        except (EOFError, OSError) as exc:
            if isinstance(exc, TimeoutError):
                raise
            raise InfraError(f"{self.function}: its process ended {how_ended(process.end())} while it graded") from exc
        return answer

    def _receive(self, process: _Process, seconds: float, purpose: str) -> dict[str, JSON]:
        if not process.connection.poll(seconds):
            raise TimeoutError(f"{self.function} took longer than {seconds:g} s to {purpose}; its process was killed")
        answer: dict[str, JSON] = json.loads(process.connection.recv_bytes())
        return answer


class _Process(ChildProcess):
    """A process of the pool, with the connection to it."""

    def __init__(self) -> None:
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        super().__init__([str(_SCRIPT)], variables={"PYTHONPATH": path})


@cache
def shared() -> ProcessPool:
    """The process pool that all graders of this program share."""
    workers = ProcessPool()
    atexit.register(workers.close)
    return workers


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.cache_clear)  # the pipes belong to the parent
