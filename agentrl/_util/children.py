"""Child processes that answer requests: the parent's side. Children end with their parent, even a killed one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from agentrl._util.child import STOP, Outbox, messages

E = TypeVar("E", bound=Exception)

_END_S = 5.0
"""Seconds that a child has to end by itself before it is killed."""


class ChildProcess:
    """A Python program in a separate process, with a pipe. Ctrl-C does not reach the child.

    The program gets as arguments the id of this process, the file descriptor of the pipe, and `descriptors`.
    """

    def __init__(
        self,
        program: Sequence[str],
        *,
        variables: Mapping[str, str],
        output: int | IO[bytes] = subprocess.DEVNULL,
        descriptors: Sequence[int] = (),
    ) -> None:
        """`program` has the arguments of Python; `output` receives stdout and stderr. Raises OSError."""
        self.connection, theirs = Pipe()
        with theirs:
            inherited = (theirs.fileno(), *descriptors)
            self._popen = subprocess.Popen(
                [sys.executable, "-P", *program, str(os.getpid()), *map(str, inherited)],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,
            )
        self.output = self._popen.stdout

    @property
    def pid(self) -> int:
        return self._popen.pid

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Kill the process and the processes of the same group, from any thread. Has no effect on an ended process."""
        if not self.has_ended():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> int:
        """Wait for the end, and return the exit status. A process that has not ended after `seconds` is killed."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        self.kill()
        return self._popen.wait()


class Requests(Generic[E]):
    """Requests to a child, from any threads and event loops.

    A request is a pickled message: a number, a name and arguments. The child replies with the number and a value. A
    request with the number 0 gets no reply.
    """

    def __init__(self, child: ChildProcess, read: Callable[[Any], Any], lost: Callable[[int], E]) -> None:
        """`read` turns a reply of the child into a result, or raises the child's error. `lost` turns the child's exit
        status into the error of all waiting requests. A thread calls both functions."""
        self.child, self._read, self._lost = child, read, lost
        self.ended: Future[E] = Future()
        """The error that later requests raise. Set when the process has ended."""
        self.ended.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it
        self._outbox, self._numbers, self._lock = Outbox(child.connection), count(1), threading.Lock()
        self._answers: dict[int, Future[Any]] = {}
        threading.Thread(target=self._settle, name=f"agentrl-child-{child.pid}", daemon=True).start()

    def ask(self, name: str, *arguments: Any) -> tuple[int, Future[Any]]:
        """Send a request. Returns the request's number, and a Future of the result. Raises `ended` if the process has
        ended."""
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            if self.ended.done():
                raise self.ended.result().with_traceback(None)
            self._answers[number] = answer
        answer.add_done_callback(lambda _: self._answers.pop(number, None))
        self._send(number, name, arguments)
        return number, answer

    async def answer(self, name: str, *arguments: Any) -> Any:
        """Send a request, and return the result."""
        return await asyncio.wrap_future(self.ask(name, *arguments)[1])

    def tell(self, name: str, *arguments: Any) -> None:
        """Send a request that gets no reply. Has no effect if the process has ended."""
        self._send(0, name, arguments)

    async def end(self) -> None:
        """End the process, and wait for the end. Safe to call twice."""
        self._outbox.put(STOP)
        ended = asyncio.wrap_future(self.ended)
        await asyncio.wait([ended], timeout=_END_S)
        self.child.kill()
        await asyncio.wait([ended])

    def _send(self, *message: Any) -> None:
        self._outbox.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def _settle(self) -> None:
        """Read replies in a thread until the process ends, and set the results of the Futures."""
        for message in messages(self.child.connection, self.child.has_ended):
            number, answer = pickle.loads(message)
            future = self._answers.get(number)
            if future is not None and future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._read(answer))
                except BaseException as exc:  # noqa: BLE001 - the thread boundary: the waiting caller raises the error
                    future.set_exception(exc)
        lost = self._lost(self.child.end(_END_S))
        with self._lock:
            self.ended.set_result(lost)
            waiting = list(self._answers.values())
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(lost)
        self._outbox.close()


def how_ended(status: int) -> str:
    """How a process ended, in words: `with status 1`, or `by signal SIGKILL`."""
    if status >= 0:
        return f"with status {status}"
    with suppress(ValueError):
        return f"by signal {signal.Signals(-status).name}"
    return f"by signal {-status}"


def import_path() -> str:
    """PYTHONPATH for a child: the folder of this agentrl first, then the present PYTHONPATH."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
