"""A machine of a service with E2B's protocol, through the official client `e2b`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import e2b
import httpx
from connectrpc.errors import ConnectError

from agentrl._util.backoff import pause
from agentrl.errors import SandboxError, one_line

T = TypeVar("T")

log = logging.getLogger("agentrl")

NAME = "agentrl.name"
"""Key of a machine's metadata. The value is a unique name, by which the machine is identified if the response to its
creation is lost."""

KEEP_S = 600.0
"""Seconds that a machine lives after the owner's last `refresh`, unless the machine's lifetime is shorter."""
_PATIENCE_S = 300.0
"""Seconds for which a request is tried again while the service limits the rate of requests, or has no room for a
machine."""
_RECONNECT_S = 20.0
"""Seconds for which a request is tried again after lost connections."""
_LONGEST_PAUSE_S = 15.0
_ENDING_S = 5.0

_BUSY = (e2b.RateLimitException, e2b.ServiceBusyException)
# Clients before 2.53, needed by AgentENV, have neither of the two.
_GONE = (e2b.NotFoundException, getattr(e2b, "SandboxNotRunningException", e2b.NotFoundException))
_LOST = (httpx.TransportError, ConnectError, OSError, getattr(e2b, "SandboxUnreachableException", ConnectError))

KEPT = re.compile(r"(?:^|/)(agentrl-(\d+)-[0-9a-f]{16})(?=:|$)")
"""Matches the service's name of a machine that agentrl saved. The name has the Unix time of the deadline."""
_NOT_OFFERED = re.compile(r"(404|405|501)\b")
unwanted: set[str] = set()
"""Names of saved machines that must be removed later: a service refuses the removal while copies of the machine run."""

_PENDING: set[asyncio.Task[Any]] = set()
"""Tasks of running requests. The reference keeps the tasks from garbage collection."""


async def patiently(ask: Callable[[], Awaitable[T]], pending: set[asyncio.Task[Any]] | None = None) -> T:
    """Send a request that may be sent twice, and return the response. Waits while the service is busy, and tries again
    after lost connections. Raises SandboxError with the cause, and for a command `e2b.CommandExitException`.

    If the caller is cancelled, the request continues and its response is dropped: the client would swallow the
    cancellation, and report a lost connection (connectrpc 0.12). Until its end, the request's task is in `pending`.
    """
    pending = _PENDING if pending is None else pending
    task = asyncio.ensure_future(_tried(ask))
    pending.add(task)
    task.add_done_callback(pending.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone by then
    return await asyncio.shield(task)


async def _tried(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await _repeated(ask)
    except asyncio.CancelledError as exc:  # by `E2BMachine.__aexit__`, not by who asked
        raise SandboxError("its machine was removed meanwhile") from exc


async def _repeated(ask: Callable[[], Awaitable[T]]) -> T:
    start, tries = time.monotonic(), 0
    while True:
        try:
            return await ask()
        except e2b.CommandExitException:
            raise
        except Exception as exc:  # the service's boundary: the client raises errors of its own and of transports
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from exc
            tries += 1
            seconds = pause(tries, 1.0, _LONGEST_PAUSE_S)
            if time.monotonic() + seconds - start > _patience(exc):
                raise SandboxError(_reason(exc)) from exc
            if isinstance(exc, _BUSY) and tries == 1:
                log.info("e2b: the service is busy, so its requests wait: %s", one_line(exc))
        await asyncio.sleep(seconds)


def _patience(exc: Exception) -> float:
    """Seconds for which a request is tried again after this error."""
    if isinstance(exc, _BUSY):
        return _PATIENCE_S
    return _RECONNECT_S if isinstance(exc, _LOST) or "without an end event" in str(exc) else 0.0


def _reason(exc: Exception) -> str:
    message = one_line(exc)
    if isinstance(exc, e2b.AuthenticationException) and str(exc).startswith("401"):  # not an unknown user's
        return f"the service refuses the key in E2B_API_KEY: {message}"
    if isinstance(exc, _BUSY):
        return f"the service is still busy after {_PATIENCE_S:.0f} s; make fewer sandboxes at a time: {message}"
    if isinstance(exc, _GONE) or "was not found" in message:
        return f"the service has no such machine, or it has ended: {message}"
    if isinstance(exc, _LOST):
        return f"the service cannot be reached: {message}"
    return message


class E2BMachine:
    """A `SandboxService`. Entering creates the machine. The machine expires unless `refresh` is called."""

    def __init__(self, template: str, metadata: Mapping[str, str], lifetime_s: float, internet: bool) -> None:
        self.sandbox_id = ""
        self._template, self._metadata, self._internet = template, dict(metadata), internet
        self._until = time.time() + lifetime_s
        self._box: Any = None
        self._pending: set[asyncio.Task[Any]] = set()
        self._awake, self._pauses = asyncio.Event(), 0
        self._awake.set()

    @classmethod
    def of(cls, box: e2b.AsyncSandbox, like: E2BMachine) -> E2BMachine:
        """An E2BMachine for an existing machine, such as a fork, with the settings of `like`."""
        self = cls(like._template, like._metadata, 0.0, like._internet)
        self.sandbox_id, self._until, self._box = box.sandbox_id, like._until, box
        return self

    async def __aenter__(self) -> E2BMachine:
        if self._box is None:
            self._box = await patiently(self._create)
            self.sandbox_id = self._box.sandbox_id
        return self

    async def __aexit__(self, *exc: object) -> None:
        await patiently(self._box.kill)
        for task in self._pending:
            task.cancel()
        if self._pending:
            await asyncio.wait(self._pending, timeout=_ENDING_S)

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: dict[str, str] | None = None,
        timeout: int = 120,
        check: bool = False,
        idempotent: bool = True,
    ) -> tuple[int, str, str]:
        """See `SandboxService.exec`. `check` and `idempotent` have no effect: the code is returned, and each command
        may be sent twice.
        """
        try:
            result = await self._request(
                lambda: self._box.commands.run(cmd, user=user, envs=env or {}, timeout=timeout)
            )
        except e2b.CommandExitException as exc:
            return exc.exit_code, exc.stdout, exc.stderr
        return result.exit_code, result.stdout, result.stderr

    async def write_file(self, sandbox_path: str, content: str | bytes | Path, *, user: str = "root") -> None:
        data = await asyncio.to_thread(content.read_bytes) if isinstance(content, Path) else content
        await self._request(lambda: self._box.files.write(sandbox_path, data, user=user))

    async def refresh(self) -> None:
        """Extend the machine's life, but not beyond the lifetime."""
        if (seconds := self._lifetime()) > 0:
            await patiently(lambda: self._box.set_timeout(seconds))

    async def pause(self) -> None:
        """Stop the machine with all processes, and save memory and files at the service. Requests wait until
        `resume`.
        """
        self._awake.clear()
        self._pauses += 1
        try:
            await patiently(self._box.pause)
        except BaseException:
            self._awake.set()
            raise

    async def resume(self) -> None:
        try:
            await patiently(lambda: self._box.connect(timeout=max(self._lifetime(), 1)))
        finally:
            self._awake.set()

    async def fork(self, count: int) -> list[E2BMachine]:
        """Copies of the machine, with the processes. Raises SandboxError, and leaves no copy, unless all could
        be made.
        """
        forks = await patiently(lambda: self._box.fork(timeout=max(self._lifetime(), 1), count=count))
        machines = [self.of(copy, self) for copy in forks if not isinstance(copy, Exception)]
        if errors := [copy for copy in forks if isinstance(copy, Exception)]:
            await asyncio.gather(*(copy.__aexit__() for copy in machines))
            raise SandboxError(f"the service made {len(machines)} of {count} forks: {_reason(errors[0])}")
        return machines

    async def keep(self, name: str) -> None:
        """Let the service save the machine's present state under a name, with the processes. The machine runs on.

        Raises SandboxError. After an error or a cancellation no snapshot remains, unless the service does not answer.
        """
        asking = asyncio.ensure_future(patiently(lambda: self._keep(name)))
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda _: _in_background(forget(name)))
            raise

    async def _keep(self, name: str) -> None:
        try:
            await self._box.create_snapshot(name=name)
        except Exception:  # the snapshot may exist: perhaps only the answer was lost
            with contextlib.suppress(Exception):
                await e2b.AsyncSandbox.delete_snapshot(name)
            raise

    async def _request(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Send a request to the machine, and return the response. A request that a pause interrupts is sent again."""
        while True:
            await self._awake.wait()
            pauses = self._pauses
            try:
                return await patiently(ask, self._pending)
            except SandboxError:
                if pauses == self._pauses:
                    raise

    def _lifetime(self) -> int:
        return round(min(KEEP_S, self._until - time.time()))

    async def _create(self) -> e2b.AsyncSandbox:
        try:
            return await e2b.AsyncSandbox.create(
                self._template,
                timeout=max(self._lifetime(), 1),
                metadata=self._metadata,
                allow_internet_access=self._internet,
                lifecycle={"on_timeout": "kill"},  # AgentENV's default is to pause and preserve a machine
            )
        except _LOST:
            await self._forget()
            raise

    async def _forget(self) -> None:
        """Remove the machine if the response to its creation was lost."""
        for info in await listed({NAME: self._metadata[NAME]}):
            await e2b.AsyncSandbox.kill(info.sandbox_id)


async def forget(name: str) -> None:
    """Remove a saved machine. If the service cannot remove the machine yet, the name stays in `unwanted`. Raises
    SandboxError.
    """
    unwanted.add(name)
    await patiently(lambda: e2b.AsyncSandbox.delete_snapshot(name))
    unwanted.discard(name)


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    async def done() -> None:
        with contextlib.suppress(SandboxError):  # the next sweep tries again
            await work

    task = asyncio.ensure_future(done())
    _PENDING.add(task)
    task.add_done_callback(_PENDING.discard)


async def kept() -> dict[str, float] | None:
    """Name -> deadline of each machine that the service has saved for agentrl. None if the service cannot save
    machines.

    Raises SandboxError.
    """
    pages, until = e2b.AsyncSandbox.list_snapshots(limit=100), dict[str, float]()
    try:
        while pages.has_next:
            for snapshot in await patiently(pages.next_items):
                names = [KEPT.search(name) for name in (snapshot.snapshot_id, *snapshot.names)]
                until.update((name[1], float(name[2])) for name in names if name)
    except SandboxError as exc:
        if _NOT_OFFERED.match(str(exc.__cause__)):
            return None
        raise
    return until


async def listed(metadata: Mapping[str, str]) -> list[e2b.SandboxInfo]:
    """All machines with this metadata, including paused machines and machines of other processes."""
    pages, machines = e2b.AsyncSandbox.list(query=e2b.SandboxQuery(metadata=dict(metadata)), limit=100), []
    while pages.has_next:
        machines += await pages.next_items()
    return machines
