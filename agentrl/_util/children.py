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
"""Seconds for a child to end by itself, before a kill."""


class ChildProcess:
    """A Python program in a separate process, with a pipe. Ctrl-C does not reach the child.

    The program's arguments are the id of this process, the descriptor of the pipe, and the other `descriptors`.
    """

    def __init__(
        self,
        program: Sequence[str],
        *,
        variables: Mapping[str, str],
        output: int | IO[bytes] = subprocess.DEVNULL,
        descriptors: Sequence[int] = (),
    ) -> None:
        """`program` are arguments of Python, `output` takes stdout and stderr. Raises OSError."""
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
        """The exit status. A process that has not ended after `seconds` is killed."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        self.kill()
        return self._popen.wait()


class Requests(Generic[E]):
    """Requests to a child, from any threads and event loops.

    A message is pickled: the request's number, a name and arguments. The child answers with the number and a value.
    The number 0 needs no answer.
    """

    def __init__(self, child: ChildProcess, read: Callable[[Any], Any], lost: Callable[[int], E]) -> None:
        """`read` makes a result of a child's answer, or raises the child's error. `lost` makes the error of all waiting
        requests from the exit status. Both are called in a thread."""
        self.child, self._read, self._lost = child, read, lost
        self.ended: Future[E] = Future()
        """The error for later requests, once the process has ended."""
        self.ended.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it
        self._outbox, self._numbers, self._lock = Outbox(child.connection), count(1), threading.Lock()
        self._answers: dict[int, Future[Any]] = {}
        threading.Thread(target=self._settle, name=f"agentrl-child-{child.pid}", daemon=True).start()

    def ask(self, name: str, *arguments: Any) -> tuple[int, Future[Any]]:
        """Send a request. Returns the number, and the future result. Raises the error of an ended process."""
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            if self.ended.done():
                raise self.ended.result().with_traceback(None)
            self._answers[number] = answer
        answer.add_done_callback(lambda _: self._answers.pop(number, None))
        self._send(number, name, arguments)
        return number, answer

    async def answer(self, name: str, *arguments: Any) -> Any:
        """Send a request, and wait for the result."""
        return await asyncio.wrap_future(self.ask(name, *arguments)[1])

    def tell(self, name: str, *arguments: Any) -> None:
        """Send a message without an answer. Has no effect on an ended process."""
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
        """The thread that settles the answers, until the process ends."""
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
    """`with status 1` or `by signal SIGKILL`."""
    if status >= 0:
        return f"with status {status}"
    with suppress(ValueError):
        return f"by signal {signal.Signals(-status).name}"
    return f"by signal {-status}"


def import_path() -> str:
    """PYTHONPATH for a child: this agentrl first, then the present path."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
