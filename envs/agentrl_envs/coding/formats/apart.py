"""Run tests in a sandbox, and the agent's code in a second sandbox. The sandboxes talk through this process.

The agent's code can neither see, signal nor read the tests: the two share no file, no process and no user. Reports of
the tests' sandbox are signed with a key that only the tests' sandbox has.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from importlib.resources import files
from shlex import quote
from typing import Any

from agentrl.sandbox import Process, Sandbox
from agentrl_sandbox.command import finish

LONGEST_REPLY = 32 << 20
"""The most bytes of a reply of the agent's code to a question of the tests."""
_LONGEST_LINE = 64 << 20
"""The most bytes of a line from the tests. A line has the input of a test."""
_LOG = 8 << 10


class Work:
    """The agent's code in its sandbox: the process of `inside/candidate.py`, which has `seconds` in total.

    A reply is text that begins with "+", or "-" and the reason. After a reply that is late, too long or unasked, no
    more replies are read.
    """

    def __init__(self, box: Sandbox, seconds: float) -> None:
        self.box, self.seconds = box, seconds
        self._deadline = 0.0
        self._process: Process | None = None
        self._over = "the work was not started"
        self._heard = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._unwanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the process of the agent's code."""
        self._deadline, self._over = time.monotonic() + self.seconds, ""
        # Not by `exec`: the parent of the work is to be a shell of its sandbox, also where nothing is isolated.
        command = f"python3 -I -B -c {quote(program('candidate.py'))} . 2>/dev/null; exit $?"
        self._process = await self.box.start(command, max_output=1, on_output=self._hear)
        self._tasks.append(asyncio.create_task(self._watch(self._process)))

    async def ask(self, question: object) -> str:
        """The reply to a question of the tests. Raises SandboxError if the sandbox broke."""
        if self._over or self._process is None:
            return f"-{self._over}"
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()) as deadline:
                with suppress(BrokenPipeError):  # it has ended: so does the wait
                    await self._process.send(json.dumps(question).encode() + b"\n")
                line = await self._waiting
        except TimeoutError:
            if not deadline.expired():
                raise
            self._refuse("the work took too long")
        finally:
            self._waiting = None
        if not self._over:
            return f"+{line.decode(errors='replace')}"
        await self.close()
        return f"-{self._over}"

    async def close(self) -> None:
        """Kill the process. Raises SandboxError if the sandbox broke."""
        self._refuse("the work was ended")
        await finish(asyncio.gather(*self._tasks))

    def _hear(self, stream: str, data: bytes) -> None:
        if stream != "stdout" or self._over:
            return
        rest, end, more = data.partition(b"\n")
        self._heard += rest
        if self._waiting is None or self._waiting.done() or more or len(self._heard) > LONGEST_REPLY:
            self._refuse("the work wrote too much, or something that was not asked for")
        elif end:
            self._waiting.set_result(bytes(self._heard))
            self._heard.clear()

    def _refuse(self, why: str) -> None:
        """Read no more replies of the agent's code. `why` is the reason in later replies."""
        self._over = self._over or why
        self._heard.clear()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(b"")
        self._unwanted.set()

    async def _watch(self, process: Process) -> None:
        """Wait until a process ends, or end the process when it is no longer needed."""
        ended = asyncio.create_task(process.wait())
        unwanted = asyncio.create_task(self._unwanted.wait())
        try:
            await asyncio.wait([ended, unwanted], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await process.kill()
            await ended
        finally:
            unwanted.cancel()
            self._refuse("the work's process ended")


class Checks:
    """`inside/check.py` in a separate sandbox. The program asks questions of the agent's code, and reports a
    verdict."""

    def __init__(self, box: Sandbox, job: Mapping[str, Any]) -> None:
        self.box = box
        self._key = secrets.token_bytes(32)
        self._job = {**job, "key": self._key.hex()}
        self._line = bytearray()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._number = 0
        self.log = ""
        """The last part of the tests' stderr, once the tests have ended."""
        self.exit_code = 0

    async def messages(self) -> AsyncGenerator[list[Any], None]:
        """Start the tests, and yield their messages: lists of a word and data. Messages without a valid signature are
        ignored."""
        command = f"exec python3 -I -B -c {quote(program('check.py'))}"
        self._process = await self.box.start(command, max_output=_LOG, on_output=self._hear)
        ending = asyncio.create_task(self._end())
        try:
            await self.reply(json.dumps(self._job))
            while (line := await self._lines.get()) is not None:
                if (message := self._believed(line)) is not None:
                    yield message
            await ending
        finally:
            await finish(self._process.kill())
            await asyncio.wait([ending])

    async def reply(self, line: str) -> None:
        """Send a line to the tests. `line` has no line feed."""
        with suppress(BrokenPipeError):  # it has ended: so does `said`
            await self._process.send(line.encode(errors="replace") + b"\n")

    def _believed(self, line: str) -> list[Any] | None:
        signature, _, text = line.partition(" ")
        expected = hmac.new(self._key, f"{self._number} {text}".encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signature.encode(errors="replace"), expected.encode()):
            return None
        self._number += 1
        message: list[Any] = json.loads(text)
        return message

    def _hear(self, stream: str, data: bytes) -> None:
        if stream != "stdout":
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._lines.put_nowait((bytes(self._line) + line).decode(errors="replace"))
            self._line.clear()
        self._line += rest[: max(_LONGEST_LINE - len(self._line), 0)]

    async def _end(self) -> None:
        try:
            ended = await self._process.wait()
            self.exit_code, self.log = ended.exit_code, ended.stderr[-2000:]
        finally:
            self._lines.put_nowait(None)


def program(name: str) -> str:
    """The source text of a program in `inside/`, which runs in a sandbox."""
    return files(__package__).joinpath("inside", name).read_text(encoding="utf-8")
