"""A program on this machine, in a new session. Back ends without an engine run commands this way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.sandbox import OnOutput

_DYING_S = 5.0
"""Seconds to wait for the end of a killed process. Only a process that hangs in the kernel takes so long."""

_TRAILING_S = 0.25
"""Seconds to wait for output after the end of a command, if a background process still holds the pipes."""


class HostProcess(asyncio.SubprocessProtocol):
    """A `Running`, except that `kill` ends only the process group. A subclass kills processes outside of the group,
    too."""

    def __init__(self, sink: OnOutput) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.released: asyncio.Future[None] = loop.create_future()
        """A future that is done when the process has ended and its pipes are closed."""
        self._sink = sink
        self._unwanted = False
        self._transport: asyncio.SubprocessTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    async def start(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bool,
        pass_fds: Sequence[int] = (),
        uid: int | None = None,
    ) -> None:
        """Start the program, as the user `uid` of this machine unless `uid` is None. Raises OSError if no process can
        be started. A cancellation kills the program."""
        other: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": ()}
        starting = asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            cwd=cwd,
            env=env,
            start_new_session=True,
            pass_fds=pass_fds,
            **other,
        )
        try:
            # Shielded, because an interrupted start leaves an unknown process.
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self.kill_group()
            raise
        except (OSError, ValueError):
            self.exited.cancel()
            self.released.cancel()
            raise

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    async def send(self, data: bytes) -> None:
        """See `Running.send`."""
        pipe = self._stdin()
        if pipe is None or pipe.is_closing() or self.exited.done():
            raise BrokenPipeError("the command has closed its stdin, or ended")
        pipe.write(data)
        await self._writable.wait()

    async def close_stdin(self) -> None:
        """See `Running.close_stdin`."""
        if (pipe := self._stdin()) is not None and not pipe.is_closing():
            pipe.write_eof()

    async def ended(self) -> int:
        """See `Running.ended`."""
        await asyncio.wait([self.exited])
        await asyncio.wait([self.released], timeout=_TRAILING_S)
        code = self.exited.result()
        return 128 - code if code < 0 else code

    async def kill(self) -> None:
        """Kill the process group, and wait for the end. A process that has ended is left alone."""
        self.kill_group()
        await asyncio.wait([self.exited], timeout=_DYING_S)
        await asyncio.wait([self.released], timeout=_TRAILING_S)

    def kill_group(self) -> None:
        """Kill the process and the group, as soon as the process runs. A process that has ended is left alone."""
        self._unwanted = True
        if self._transport is not None and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):  # the process has ended, but the loop does not know yet
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def release(self) -> None:
        """Close the pipes of a killed process, even if a background process still holds the pipes."""
        await asyncio.wait([self.exited], timeout=_DYING_S)
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait([self.released], timeout=_DYING_S)

    def _stdin(self) -> asyncio.WriteTransport | None:
        assert self._transport is not None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        if self._unwanted:
            self.kill_group()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._sink("stdout" if fd == 1 else "stderr", data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def process_exited(self) -> None:
        assert self._transport is not None
        self.exited.set_result(cast(int, self._transport.get_returncode()))
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._transport.close()
        self.released.set_result(None)
