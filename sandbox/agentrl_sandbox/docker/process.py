"""A running command in a container."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import aiohttp
from aiodocker import DockerError
from aiodocker.execs import Exec
from aiodocker.stream import Stream

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import OnOutput, SandboxKilledError
from agentrl_sandbox.docker.engine import close_stdin, exit_code, hang_up
from agentrl_sandbox.docker.state import ContainerState
from agentrl_sandbox.docker.wrapper import BEGUN, NO_FOLDER, NO_MEMORY, Marks
from agentrl_sandbox.output import Stream as StreamName

_ENDING_S = 5.0
"""Seconds to wait for the end of commands in a killed container, and for the end of a killed command."""
_STDERR = 2
_TRAILING_S = 0.25
"""Seconds to wait for the last output of a killed command."""
_KILLED = 128 + 9
_FULL = re.compile("resource temporarily unavailable|cannot fork", re.IGNORECASE)
_NO_USER = re.compile("unable to find (user|group)|no matching entries in passwd")


class DockerProcess:
    """An `agentrl_sandbox.command.Running`. Reads the command's streams up to the marks of `wrapper`, or to their
    end."""

    def __init__(
        self, state: ContainerState, command: Exec, stream: Stream, token: str, user: str, sink: OnOutput
    ) -> None:
        self._state, self._command, self._stream, self._user, self._sink = state, command, stream, user, sink
        self._out, self._err = Marks(token, 2), Marks(token, 1)
        self._marks: dict[StreamName, Marks] = {"stdout": self._out, "stderr": self._err}
        self._started = asyncio.Event()
        self._early: list[tuple[StreamName, bytes]] = []
        """Output before the first mark: the command's stderr, or the engine's message if no command began."""
        self._code = asyncio.create_task(self._run())

    def when_done(self, callback: Callable[[DockerProcess], None]) -> None:
        """Call `callback` with this process once the streams have been read."""

        def done(code: asyncio.Task[int]) -> None:
            if not code.cancelled():
                code.exception()  # mark the exception as retrieved
            callback(self)

        self._code.add_done_callback(done)

    async def begun(self) -> None:
        """Wait until the command runs. Raises the error of a failed start."""
        waiting = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait([waiting, self._code], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._out.reports[:1] == [NO_FOLDER]:
            raise FileNotFoundError("no such folder")
        if self._first is None:
            if self._code.cancelled():  # the sandbox ended meanwhile
                self._state.check_alive()
                raise SandboxError(f"sandbox {self._state.sandbox_id} was closed while a command began")
            raise await self._refused(await self._code)

    @property
    def _first(self) -> tuple[int, int] | None:
        """The command's process id, and how many processes the kernel had killed for memory before the command. None if
        the command has not begun."""
        match = BEGUN.fullmatch(self._out.reports[0]) if self._out.reports else None
        return (int(match[1]), int(match[2])) if match else None

    async def send(self, data: bytes) -> None:
        """See `Running.send`."""
        if self._code.done():
            raise BrokenPipeError("the command has ended")
        writing = asyncio.create_task(self._stream.write_in(data))
        try:
            await asyncio.wait([writing, self._code], return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                raise BrokenPipeError("the command has ended")
            writing.result()
        except (aiohttp.ClientError, ConnectionError, RuntimeError, AssertionError) as exc:
            raise BrokenPipeError("the command no longer reads") from exc
        finally:
            writing.cancel()

    async def close_stdin(self) -> None:
        """See `Running.close_stdin`."""
        close_stdin(self._stream)

    async def ended(self) -> int:
        """See `Running.ended`."""
        await asyncio.wait([self._code])
        return _KILLED if self._code.cancelled() else self._code.result()

    async def kill(self) -> None:
        """See `Running.kill`."""
        if self._code.done() or self._first is None:
            return None
        if await self._state.kill_tree(self._first[0], self._user):
            # The engine closes the streams now, or seconds later (see `ContainerState.output_of`). A wait is needed
            # only where the sandbox could have replaced the reporting shell.
            await asyncio.wait([self._code], timeout=_TRAILING_S if self._state.spec.read_only else _ENDING_S)
            if self._state.spec.read_only:
                return await self.abandon()
            is_over = self._code.done()
        else:
            await asyncio.wait([self._code], timeout=_TRAILING_S)  # the command may have ended just now
            is_over = self._out.complete
        if not is_over:
            try:
                await self._state.kill_all(
                    "a command could not be killed at its end: there was no room for what kills it, "
                    "or the command had killed what watches over it"
                )
                await asyncio.wait([self._code], timeout=_ENDING_S)
            finally:
                await self.abandon()
            self._state.check_alive()
        return None

    async def abandon(self) -> None:
        """Stop reading, because the sandbox ends."""
        self._code.cancel()
        await asyncio.wait([self._code])

    async def _run(self) -> int:
        """Read the streams to their end, and return the exit code."""
        try:
            with self._state.telling():
                await self._read()
                report = self._out.reports[-1] if self._out.complete else ""
                code = int(report.removesuffix(NO_MEMORY)) if report else await self._asked()
            if report.endswith(NO_MEMORY) or (not report and await self._ran_out_of_memory(code)):
                message = f"killed: the sandbox's memory is used up (memory_mb={self._state.spec.memory_mb})\n"
                self._sink("stderr", message.encode())
            return code
        finally:
            await hang_up(self._stream)

    async def _read(self) -> None:
        """Read to the last marks, or to the end of streams without marks."""
        while not (self._out.complete and self._err.complete):
            message = await self._stream.read_out()
            if message is None:
                self._sink("stdout", self._out.rest())
                self._sink("stderr", self._err.rest())
                return
            stream: StreamName = "stderr" if message.stream == _STDERR else "stdout"
            self._early.append((stream, self._marks[stream].feed(message.data)))
            if self._first is not None:
                self._started.set()
                for stream, part in self._early:
                    if part:
                        self._sink(stream, part)
                self._early.clear()

    async def _asked(self) -> int:
        """Ask the engine for the exit code. Raises SandboxError or SandboxKilledError if the container ended."""
        try:
            code = await exit_code(self._command)
        except DockerError:  # the command ends with the container
            code = None
        if code == _KILLED:  # the watcher, too: perhaps with its container
            await self._state.ensure_alive()
        else:
            await self._state.look()
            self._state.check_alive()
        if code is None:
            raise SandboxError(f"sandbox {self._state.sandbox_id}: the engine closed the connection to a command")
        return code

    async def _ran_out_of_memory(self, code: int) -> bool:
        return code == _KILLED and self._first is not None and await self._state.out_of_memory(self._first[1])

    async def _refused(self, code: int) -> Exception:
        """Why the command did not begin."""
        output = " ".join(b"".join(part for _, part in self._early).decode(errors="replace").split())
        name = self._state.sandbox_id
        if _NO_USER.search(output):
            return ConfigError(f"the image has no user {self._user!r}; use agent, root, or one of its /etc/passwd")
        # An engine reports the same words if the engine's machine has no room for a process.
        lacks = await self._state.used_up(0.5 if _FULL.search(output) else 1.0)
        if lacks == "process":
            return SandboxKilledError(self._state.no_room())
        await self._state.ensure_alive()
        if lacks == "memory" or (code == _KILLED and await self._state.out_of_memory(0)):
            memory = self._state.spec.memory_mb
            return SandboxKilledError(f"sandbox {name} has no memory for another process (memory_mb={memory})")
        if code == _KILLED:
            return SandboxKilledError(f"sandbox {name} has processes that kill each command as it starts")
        return SandboxError(f"sandbox {name} cannot start a command: {output or f'exit code {code}'}")
