"""The pipe between a process and its child process, and how the child ends. See `children.py` for the parent's side.

The file imports only the standard library, and so can be loaded without agentrl.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue

STOP = b""
"""The message after which no messages follow."""
_POLL_S = 1.0


def messages(connection: Connection, is_gone: Callable[[], bool]) -> Iterator[bytes]:
    """The messages of the other process, until `STOP` or the end of the connection.

    The messages also end if `is_gone` returns True: a third process may hold the other end of the connection open.
    """
    with suppress(EOFError, OSError):
        while True:
            while not connection.poll(_POLL_S):
                if is_gone() and not connection.poll():
                    return
            if (message := connection.recv_bytes()) == STOP:
                return
            yield message


def of_parent(connection: Connection, parent: int) -> Iterator[bytes]:
    """The messages of the process `parent`, in its child. The messages end when the parent has ended."""
    os.set_inheritable(connection.fileno(), False)
    return messages(connection, lambda: os.getppid() != parent)


class Outbox:
    """Sends messages from any thread, in order. No caller waits until the other process reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="agentrl-outbox", daemon=True)
        self._thread.start()

    def put(self, message: bytes) -> None:
        """Queue a message to be sent. Has no effect if the other process has ended."""
        self._queue.put(message)

    def close(self) -> None:
        """Send the remaining messages, and close the connection."""
        self._queue.put(None)
        self._thread.join()

    def _send(self) -> None:
        while (message := self._queue.get()) is not None:
            with suppress(OSError):
                self._connection.send_bytes(message)
        self._connection.close()


def run(program: Callable[[], None]) -> None:
    """Run the program of a child process, then end the process, even if threads hang.

    Ignores SIGINT and SIGTERM: the signals are for the parent, and the parent ends the child.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    status = 1
    try:
        program()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # the parent shows the last lines
        raise
    finally:
        atexit._run_exitfuncs()  # temporary folders are removed
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
