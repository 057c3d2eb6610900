"""A command in a hosted machine. Short requests, one after the other, replace a lasting connection."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

from agentrl.errors import SandboxError
from agentrl.sandbox import OnOutput, SandboxKilledError
from agentrl_sandbox.hosted import scripts
from agentrl_sandbox.tools import NO_PROCESS

Ask = Callable[[str, float, bool], Awaitable[str]]
"""Runs a script in the machine: (script, seconds, as root) -> stdout. Raises SandboxError if the machine does not
respond."""
Write = Callable[[str, bytes], Awaitable[None]]
"""Writes a file of the command's user: (path, content)."""

_TICK_S = 0.02
_FIRST_S, _LATER_S = 0.2, 20.0
"""Seconds that a request waits in the machine for new output. _FIRST_S: the first request. _LATER_S: later requests."""
_TRAILING_S = 0.25
_STATES = ("runs", "more", "over", "lost")
_LINE = re.compile(r"[A-Za-z0-9+/=]{0,76}|\.| (-|\d+)")
"""Matches a line of a response: a number, base64, the end of a stream, a state, or the code after the token."""
_LONGEST = 48 << 10
"""The most characters of a script, and bytes of stdin, in a request itself. Longer data is sent as a file."""


class HostedProcess:
    """A `Running` that uses requests. Each request may be sent twice without harm."""

    def __init__(
        self, folder: str, ask: Ask, write: Write, sink: OnOutput, broken: Callable[[], Awaitable[None]]
    ) -> None:
        self.folder = folder
        self._ask, self._write, self._sink, self._broken = ask, write, sink, broken
        self._token = folder.rpartition("/")[2]
        self._sending = asyncio.Lock()
        self._killing = asyncio.Lock()
        self._arrived = {"o": 0, "e": 0}
        self._sent = 0
        self._code: int | None = None
        self._coded_at = 0.0
        self._last = {"o": 0, "e": 0}
        """Stream (o or e) -> number of the last piece of the command's output, set at its end. Later pieces come from
        background processes."""
        self._over = False
        self._pump: asyncio.Task[None] | None = None
        self._error: SandboxError | None = None

    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bool,
        limits: str,
        finished: Sequence[str],
    ) -> None:
        """Start the command. Raises FileNotFoundError for a `cwd` that is no folder. After a cancellation no process is
        left.
        """
        script = (
            scripts.launch(self.folder, argv, env=env, cwd=cwd, stdin=stdin, limits=limits, finished=finished)
            .encode(errors="replace")
            .decode()
        )
        try:
            if len(data := script.encode()) > _LONGEST:
                await self._write(f"{self.folder}.sh", data)
                script = f"sh {self.folder}.sh; rm -f {self.folder}.sh"
            await self._poll(0.0 if stdin else _FIRST_S, before=f"({script}\n)\n")
        except asyncio.CancelledError:
            await self.kill()
            raise
        if not self.finished:
            self._pump = asyncio.create_task(self._fetch(), name="hosted command")

    @property
    def finished(self) -> bool:
        """Whether no further requests for the command will be sent."""
        return self._code is not None and (self._over or time.monotonic() - self._coded_at > _TRAILING_S)

    async def send(self, data: bytes) -> None:
        """See `Running.send`."""
        async with self._sending:
            for start in range(0, len(data), 1 << 20):
                await self._send(data[start : start + (1 << 20)])

    async def close_stdin(self) -> None:
        """See `Running.close_stdin`."""
        if self._code is None:
            await self._ask(f"[ ! -d {self.folder} ] || : > {self.folder}/i.end", 30.0, False)

    async def ended(self) -> int:
        """See `Running.ended`."""
        if self._pump is not None:
            await asyncio.wait([self._pump])
        if self._error is not None:
            raise self._error
        return 128 + 9 if self._code is None else self._code

    def abandon(self) -> None:
        """Send no more requests, as the machine has ended."""
        if self._pump is not None:
            self._pump.cancel()

    async def kill(self) -> None:
        """See `Running.kill`. If the kill fails, the whole machine is ended."""
        async with self._killing:
            if self._code is not None:
                return None
            # Root has room for a process where the user has none. The user sees the marks of the user's processes, but
            # a container's root may not.
            for as_root in (True, False):
                try:
                    answer = await self._ask(scripts.kill(self.folder), 60.0, as_root)
                except SandboxError as exc:  # the command may still run: give up the machine
                    self._error = self._error or exc
                    return await self._broken()
                if f"{self._token} killed" not in answer:
                    await self._broken()
                    raise SandboxKilledError("a command could not be killed, so its machine was given up")
            if self._pump is None:  # killed during the start
                await self._fetch()
            await self.ended()
        return None

    async def _fetch(self) -> None:
        """Fetch output and pass it to the sink, until the command has ended."""
        try:
            while not self.finished:
                await self._poll(_LATER_S if self._code is None else _TRAILING_S)
        except SandboxError as exc:
            self._error = exc
        except FileNotFoundError:  # killed during the start, before the command ran
            self._code, self._over = 128 + 9, True

    async def _send(self, data: bytes) -> None:
        inline = base64.b64encode(data).decode() if len(data) <= _LONGEST else ""
        if not inline and self._code is None:
            await self._write(f"{self.folder}/up", data)
        while self._code is None:
            answer = await self._ask(scripts.send(self.folder, self._sent, inline), 60.0, False)
            if f"{self._token} taken" in answer:
                self._sent += 1
                return
            if f"{self._token} deaf" in answer:
                break
            inline = ""
        raise BrokenPipeError("the command has closed its stdin, or ended")

    async def _poll(self, seconds: float, before: str = "") -> None:
        """Fetch new output, and wait up to `seconds` for it. The request may be cancelled, and may be sent twice."""
        arrived = self._arrived
        script = scripts.poll(self.folder, arrived["o"], arrived["e"], round(seconds / _TICK_S))
        self._read(await self._ask(before + script, seconds + 60.0, False))

    def _read(self, answer: str) -> None:
        words, *lines = answer.partition(self._token)[2].split("\n")
        if not words:
            raise _unexpected(answer, started=False)
        if words.split() == [scripts.NO_FOLDER]:
            raise FileNotFoundError("no such folder")
        if words.split() == [scripts.GONE]:
            raise SandboxError("the folder of the command is gone: something in the sandbox removed it")
        before = dict(self._arrived)
        state = self._take("e", "stderr", self._take("o", "stdout", lines))[:1]
        if state[0] not in _STATES:
            raise _unexpected("\n".join(lines))
        if state == ["lost"]:
            raise SandboxError("output was lost, as the machine's disk is full")
        if words.strip().isdecimal() and self._code is None:
            self._code, self._coded_at = int(words), time.monotonic()
            most = scripts.PIECES + 3  # the waiting pieces, and the pipe's content
            self._last = {name: arrived + most for name, arrived in before.items()}
        elif any(before[name] < min(arrived, self._last[name]) for name, arrived in self._arrived.items()):
            self._coded_at = time.monotonic()
        self._over = state == ["over"]

    def _take(self, name: Literal["o", "e"], stream: Literal["stdout", "stderr"], lines: list[str]) -> list[str]:
        """Pass the pieces of a stream to the sink. Returns the lines after these pieces."""
        try:
            end = lines.index(".")
            pieces, data = int(lines[0]), base64.b64decode("".join(lines[1:end]), validate=True)
        except (ValueError, IndexError) as exc:
            raise _unexpected("\n".join(lines)) from exc
        if data:
            self._sink(stream, data)
        self._arrived[name] += pieces
        return lines[end + 1 :] or [""]


def _unexpected(answer: str, *, started: bool = True) -> SandboxError:
    """The error for an unexpected response. `started`: whether the response began with the token. A service may cut off
    such a response, but never extends it."""
    tampered = started and not all(map(_LINE.fullmatch, answer.split("\n")))
    answer = " ".join(answer[-300:].split())
    if any(text in answer for text in NO_PROCESS):
        return SandboxKilledError(f"there is no room for another process; the sandbox's own fill it (pids): {answer}")
    if tampered:
        return SandboxKilledError(f"a program in the sandbox wrote into the machine's answers: {answer!r}")
    return SandboxError(f"the machine answered {answer!r}, which is not what was asked")
