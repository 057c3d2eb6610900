"""A server that agentrl starts and ends: its process, port and log."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_POLL_S = 0.3
_SAY_S = 20.0
"""Seconds until the first message that the server is not up yet. Each further pause is twice as long."""
_STOP_S = 15.0
"""The most seconds for the watchdog to end a server. The watchdog kills the server after at most five seconds."""
_TAIL_LINES = 8
_LINE_CHARACTERS = 240
_ERROR = re.compile(r"(^|\b)(error: |[\w.]*(Error|Exception): )")
_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The environment in which a server runs."""

    log: Path
    """The log file. The server's output is appended."""
    variables: Mapping[str, str]
    """The environment variables."""
    scratch: Path
    """The folder of the server's weights, which is removed if agentrl dies."""


class ServerProcess:
    """Runs a command in a separate session and process group, under a watchdog. If this process dies, the watchdog ends
    the command."""

    def __init__(self, command: Sequence[str], place: ProcessSettings) -> None:
        self.log = log = place.log
        watched = [sys.executable, "-S", "-E", str(_WATCHDOG), str(os.getpid()), str(place.scratch), *command]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"== {' '.join(command)}\n".encode())
            output.flush()
            self._begins = output.tell()
            self._process = subprocess.Popen(
                watched,
                env=dict(place.variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid
        """The process id of the watchdog. The watchdog's session is separate from the server's session."""

    @property
    def ended(self) -> int | None:
        """The exit status of the server. None while the server runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Wait until the server has ended."""
        # A waiting thread would outlive this loop.
        while (status := self.ended) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return status

    async def until_up(
        self, is_up: Callable[[], Awaitable[bool]], *, seconds: float, say: Callable[[str], None]
    ) -> None:
        """Wait until `is_up` returns True. `say` gets lines about the progress.

        Raises ConfigError with the last lines of the log if the server ends first, or after `seconds`.
        """
        say(f"SGLang starts, which takes a while (log: {self.log})")
        start, next_said = time.monotonic(), _SAY_S
        while not await is_up():
            now = time.monotonic()
            if (status := self.ended) is not None:
                raise ConfigError(f"SGLang ended with status {status} before it was up: {self._last_words()}")
            if now - start > seconds:
                raise ConfigError(
                    f"SGLang was not up after {seconds:g} s; raise engine_config.start_s, or see why: "
                    f"{self._last_words()}"
                )
            if now - start > next_said:
                next_said *= 2
                say(f"SGLang is not up yet, after {now - start:.0f} s")
            await asyncio.sleep(_POLL_S)
        say(f"SGLang is up after {time.monotonic() - start:.0f} s")

    def last_lines(self) -> str:
        """The last lines of the log, for an error message."""
        return f"the log {self.log} ends: {' | '.join(self._lines()[-_TAIL_LINES:])}"

    def _last_words(self) -> str:
        """The last line of the log that names an error, or else the last lines; and the path of the log."""
        lines = self._lines()
        errors = [line for line in lines if _ERROR.search(line)]
        return f"{errors[-1] if errors else ' | '.join(lines[-_TAIL_LINES:])}; all of it is in {self.log}"

    def _lines(self) -> list[str]:
        """The last lines of the log that were written since this start."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._begins, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines() if line.strip()] or ["(the log is empty)"]

    async def stop(self) -> None:
        """End the server with all of its processes, and wait for the end. Safe to call twice, even if the caller is
        cancelled."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        await asyncio.shield(asyncio.to_thread(self._reap))

    def _reap(self) -> None:
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:  # a stuck watchdog: the kernel then also kills the server
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def check_interpreter(python: str, variables: Mapping[str, str]) -> None:
    """Raises ConfigError unless `python` is an interpreter with SGLang."""
    remedy = (
        "install it there, or name the interpreter that has it: --set engine_config.python=/path/to/venv/bin/python"
    )
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        outcome = subprocess.run(
            [python, "-c", probe], env=dict(variables), capture_output=True, timeout=60, check=False
        )
    except FileNotFoundError:
        raise ConfigError(f"engine_config.python {python}: no such program; {remedy}") from None
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"engine_config.python {python} cannot be run ({exc}); {remedy}") from exc
    if outcome.returncode:
        raise ConfigError(f"SGLang is not installed for {python}; {remedy}")
