"""The server of a training run: started by agentrl, or already running."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self

from agentrl.engine.sglang.training.control import ServerControl
from agentrl.engine.sglang.training.flags import Launch, fixed_port
from agentrl.engine.sglang.training.process import ProcessSettings, ServerProcess, free_port, is_free
from agentrl.errors import ConfigError, EngineError, EngineLostError, RequestError

_log = logging.getLogger("agentrl")

_PORTS = 3
"""The number of ports to try: a different program may take a free port before SGLang does."""
_END_S = 15.0
"""The most seconds, after a broken connection, in which a server responds again or ends."""
_POLL_S = 0.3


class ServerGoneError(EngineLostError):
    """The server has ended, or no longer answers."""


class TrainingServer:
    """A server with its `control`, and with its process if agentrl has started the server.

    The class decides whether an error means that the server is gone.
    """

    def __init__(self, control: ServerControl, process: ServerProcess | None = None) -> None:
        self.control = control
        self._process = process
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def launch(
        cls, launch: Launch, place: ProcessSettings, *, seconds: float, say: Callable[[str], None]
    ) -> Self:
        """Start a server, and wait until it is up. If ConfigError is raised, no process of the server is left."""
        for attempt in range(1, _PORTS + 1):
            port = _port(launch.args)
            process, control = ServerProcess(launch.command(port), place), ServerControl(f"http://127.0.0.1:{port}")
            try:
                await process.until_up(partial(_is_ours, control, launch.name), seconds=seconds, say=say)
            except BaseException as exc:
                await control.close()
                await process.stop()
                mine = fixed_port(launch.args) is None
                if not isinstance(exc, ConfigError) or is_free(port) or not mine or attempt == _PORTS:
                    raise
                _log.info("another program took port %d before SGLang did", port)
            else:
                return cls(control, process)
        raise AssertionError("the last attempt returns or raises")

    def when_it_ends(self, call: Callable[[], None]) -> None:
        """Call `call` if the server ends before `close`. Has no effect for a server that agentrl has not started."""
        if (process := self._process) is not None:

            async def wait() -> None:
                await process.wait()
                call()

            self._watch = asyncio.create_task(wait())

    def check(self) -> None:
        """Raises ServerGoneError if the server has ended."""
        if self._process is not None and self._process.ended is not None:
            raise ServerGoneError(f"SGLang ended with status {self._process.ended}; {self._process.last_lines()}")

    async def told(self, command: Awaitable[None]) -> None:
        """Await a command. Raises EngineError if the server refuses the command, and ServerGoneError if the server is
        gone."""
        try:
            await command
        except EngineError as exc:
            raise await self.judged(exc) from exc

    async def judged(self, error: EngineError) -> EngineError:
        """The error itself if the server still exists, else a ServerGoneError."""
        if isinstance(error, RequestError):
            return error
        deadline = time.monotonic() + _END_S
        try:
            while time.monotonic() < deadline:
                self.check()
                if await self.control.answers():
                    return error
                await asyncio.sleep(_POLL_S)
        except ServerGoneError as gone:
            return gone
        return ServerGoneError(f"SGLang at {self.control.url} no longer answers ({error})")

    async def close(self) -> None:
        """End the server if agentrl has started it. Safe to call twice."""
        if self._watch is not None:
            self._watch.cancel()
        await self.control.close()
        if self._process is not None:
            await self._process.stop()


def _port(args: Sequence[str]) -> int:
    """The port of the user's flags, or a free port. Raises ConfigError if the port of the flags is in use."""
    port = fixed_port(args)
    if port is None:
        return free_port()
    if not is_free(port):
        raise ConfigError(f"engine_config.args: port {port} is taken; leave --port out, and a free one is found")
    return port


async def _is_ours(control: ServerControl, name: str) -> bool:
    """Whether the server that agentrl has started is up. Raises ConfigError if a different program has taken its
    port."""
    if not await control.is_up():
        return False
    try:
        served = (await control.model_info()).get("served_model_name", name)  # older servers report no name
    except EngineError:  # the server is busy, or shutting down again
        return False
    if served != name:
        raise ConfigError(f"{control.url}: another server, of {served}, took this port; run the command again")
    return True
