"""A command in a sandbox: the protocol `Running` of back ends, and a `Process` for users that is built on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from agentrl.sandbox import CANNOT_RUN, ExecResult
from agentrl_sandbox.output import Output

T = TypeVar("T")

_LONGEST_SCRIPT = 128 << 10
"""The longest argument of a program on Linux, in bytes."""
_PIECE = 256 << 10


class Running(Protocol):
    """A command that a back end has started. Output goes to the `sink` of `ShellSandbox._spawn`."""

    async def send(self, data: bytes) -> None:
        """Write to stdin and wait while the pipe is full. Raises BrokenPipeError once the reader is gone."""
        ...

    async def close_stdin(self) -> None: ...

    async def ended(self) -> int:
        """Wait for the end of the first process and all output. Returns the exit code, 128 + n for signal n.

        If a background process still holds the pipes, the wait ends after a moment. May be cancelled and called again.
        Raises SandboxKilledError or SandboxError if the sandbox ended meanwhile.
        """
        ...

    async def kill(self) -> None:
        """Kill the whole process tree, unless already ended, and wait for the end and all output. Raises
        SandboxKilledError if the kill required the end of the sandbox. Safe to call twice.
        """
        ...


class ShellProcess:
    """An `agentrl.sandbox.Process`, built from a Running and an Output."""

    def __init__(self, running: Running, output: Output, check_open: Callable[[], None]) -> None:
        self._running = running
        self._output = output
        self._check_open = check_open
        """A function that raises SandboxError if the sandbox was closed."""
        self._result: ExecResult | None = None

    async def send(self, data: bytes) -> None:
        """See `Process.send`."""
        for start in range(0, len(data), _PIECE):
            await self._running.send(data[start : start + _PIECE])

    async def close_stdin(self) -> None:
        """See `Process.close_stdin`."""
        await self._running.close_stdin()

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """See `Process.wait`."""
        if self._result is None:
            code = await self._code(timeout)
            self._check_open()
            if self._result is None:  # a parallel `wait` may have been first
                self._result = self._output.timed_out() if code is None else self._output.result(code)
        return self._result

    async def kill(self) -> None:
        """See `Process.kill`."""
        await finish(self._running.kill())

    async def _code(self, timeout: float | None) -> int | None:
        """Wait for the exit code. None if the command was killed at the timeout."""
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await self._running.ended()
        except TimeoutError:
            if not deadline.expired():
                raise
        await self.kill()
        return None


class Unstartable:
    """The process of a command not accepted by any shell."""

    def __init__(self) -> None:
        self._result = ExecResult(CANNOT_RUN, "", "cannot run the command: it is too long or holds a NUL character\n")

    async def send(self, data: bytes) -> None:
        raise BrokenPipeError("the command did not start")

    async def close_stdin(self) -> None: ...

    async def wait(self, timeout: float | None = None) -> ExecResult:
        return self._result

    async def kill(self) -> None: ...


def fits(script: str) -> bool:
    """Whether a shell accepts the command."""
    data = script.encode(errors="replace")
    return b"\0" not in data and len(data) < _LONGEST_SCRIPT


@contextlib.asynccontextmanager
async def fed(feed: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Within `with`, run `feed`, which writes to a command's stdin. It is no error if the command stops reading."""
    if feed is None:
        yield
        return
    task = asyncio.create_task(feed)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled() and not isinstance(task.exception(), BrokenPipeError):
        task.result()


async def finish(work: Awaitable[T]) -> T:
    """Wait for the end of `work`, even if the caller is cancelled. CancelledError is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (error := task.exception()) is not None:
        raise cancelled from error
    raise cancelled
