"""Find out whether a container still runs and why it ended, and kill a command or the whole container."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from aiodocker import DockerError

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox.docker.container import identity
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.wrapper import KILLED, killer
from agentrl_sandbox.spec import SandboxSpec

_KILL_S = 10.0
_LEARNING_S = (0.0, 0.05, 0.2, 0.5)
"""Seconds to pause before each request about the end of a container, as the engine notices an end late."""
_CAUSE_S = (0.2, 0.3, 0.5)
"""Seconds to pause, after a container's end, before each further request whether memory was the cause."""
_TOOL_S = 10.0
_NEEDED = 6
"""The number of processes that the start of a command needs."""
_NOT_FOUND = 127
_BY_KILL = 128 + 9
_SHOW_OOM = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null; echo end"


class ContainerState:
    """The state of a sandbox's container, as the engine reports it."""

    def __init__(self, spec: SandboxSpec, sandbox_id: str, engine: DockerClient) -> None:
        self.spec, self.sandbox_id = spec, sandbox_id
        self.container = engine.docker.containers.container(sandbox_id)  # an engine takes names for ids
        self._engine = engine
        self.on_failure: Callable[[], object] = lambda: None
        """A function that is called after a failed request, unless commands of the sandbox were the cause."""
        self.ended: tuple[type[SandboxError], str] | None = None
        """The type and text of the error of later commands, if the container has ended. SandboxKilledError if commands
        of the sandbox were the cause."""
        self._killed_for = ""

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Within `with`, turn the engine's errors into SandboxErrors about this sandbox."""
        try:
            with self._engine.telling(f"sandbox {self.sandbox_id}"):
                yield
        except SandboxKilledError:
            raise
        except SandboxError:
            self.on_failure()
            raise

    def end(self, why: str) -> None:
        """Let running and later requests raise SandboxError with this reason, unless the container had ended before."""
        self.ended = self.ended or (SandboxError, why)

    def check_alive(self) -> None:
        """Raises SandboxKilledError or SandboxError, with the cause, if the container has ended."""
        if self.ended is not None:
            kind, why = self.ended
            raise kind(why)

    async def ensure_alive(self) -> None:
        """Like `check_alive`, but waits a moment, as the engine may not have noticed the end yet."""
        for delay in _LEARNING_S:
            await asyncio.sleep(delay)
            await self.look()
            self.check_alive()

    async def look(self) -> None:
        """Ask the engine whether the container has ended, and store why."""
        if self.ended is not None:
            return
        state = await self._inspect()
        if state["Running"]:
            return
        for delay in _CAUSE_S:
            if state["ExitCode"] != _BY_KILL or state["OOMKilled"] or self._killed_for:
                break
            await asyncio.sleep(delay)
            state = await self._inspect()
        name = f"sandbox {self.sandbox_id}"
        if self._killed_for:
            self.ended = (SandboxKilledError, f"{name} was killed: {self._killed_for}")
        elif state["OOMKilled"]:
            why = f"{name} ended: its memory was used up (memory_mb={self.spec.memory_mb})"
            self.ended = (SandboxKilledError, why)
        elif state["ExitCode"] == _NOT_FOUND:
            raise SandboxError(f"{name}: image {self.spec.image or 'of the spec'!r} has no /bin/sh")
        else:  # no command can end the first process
            why = f"exit code {state['ExitCode']}: the engine was restarted, or the container was stopped"
            self.ended = (SandboxError, f"{name} was stopped from outside ({why})")

    async def _inspect(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = (await self.container.show())["State"]
        except DockerError as exc:
            if exc.status != 404:
                raise
            raise SandboxError(
                f"sandbox {self.sandbox_id} was removed from outside: its lifetime_s={self.spec.lifetime_s:g} was "
                "over, or it was removed by hand"
            ) from exc
        return state

    # What is used up

    async def out_of_memory(self, before: int) -> bool:
        """Whether the kernel has killed more than `before` processes of this sandbox for memory."""
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_TOOL_S):
                output = await self.output_of(["/bin/sh", "-c", _SHOW_OOM], "end", user="0:0")
            words = output.split()
            counts = [int(count) for name, count in itertools.pairwise(words) if name == "oom_kill"]
            return "OOM-killed" in output or max(counts, default=0) > before  # or no room for this command either
        return await self.used_up() == "memory"  # a full sandbox may not answer in time

    async def used_up(self, pids: float = 1.0) -> Literal["process", "memory", ""]:
        """The resource that the container has used up (memory or processes), by the engine's counts. Processes count as
        used up at the share `pids` of their limit."""
        try:
            parameters = {"stream": "0", "one-shot": "1"}
            stats = await self._engine.docker._query_json(f"containers/{self.sandbox_id}/stats", params=parameters)
        except DockerError:  # the container has ended
            return ""
        if stats.get("pids_stats", {}).get("current", 0) > pids * self.spec.pids - _NEEDED:
            return "process"
        memory = stats.get("memory_stats", {})
        return "memory" if memory.get("usage", 0) > 0.9 * memory.get("limit", float("inf")) else ""

    def no_room(self) -> str:
        """The error message for a sandbox that has reached its limit of processes."""
        pids = self.spec.pids
        return f"sandbox {self.sandbox_id} has no room for another process (pids={pids}): its own fill it"

    # Kills

    async def kill_tree(self, pid: int, user: str) -> bool:
        """Kill a process of this user and all its descendants. Returns False if the kill may have failed."""
        for _ in range(3):
            with contextlib.suppress(SandboxError, TimeoutError):
                async with asyncio.timeout(_KILL_S):
                    output = await self.output_of(killer(pid), KILLED, user=identity(user))
                if output.endswith(KILLED):
                    return True
            if self.ended is not None:
                break
        return False

    async def kill_all(self, why: str) -> None:
        """Kill the container because of its commands. Later requests raise SandboxKilledError with this reason, or
        SandboxError if the engine fails to kill the container, or if the container had ended before for a different
        reason.
        """
        try:
            with self.telling():
                async with asyncio.timeout(_KILL_S):
                    await self.look()
                    self._killed_for = why
                    await self._kill()
                    await self.look()
        except SandboxError as exc:
            self._killed_for = ""
            self.end(f"{exc} (it was to be killed: {why})")
            raise

    async def _kill(self) -> None:
        try:
            await self.container.kill()
        except DockerError as exc:
            if exc.status not in (404, 409):  # the container has ended already
                raise

    async def output_of(self, argv: Sequence[str], last: str, *, user: str) -> str:
        """Run a command of agentrl in the container. Returns its output up to the word `last`, or all output without
        the word.

        The engine may report the command's end seconds late, if a background process of a different command holds the
        pipes.
        """
        output = b""
        with self.telling():
            command = await self.container.exec(list(argv), user=user, workdir="/")
            async with command.start() as stream:
                while last.encode() not in output and (message := await stream.read_out()) is not None:
                    output += message.data
        return output.decode(errors="replace").strip()
