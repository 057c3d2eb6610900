"""The bookkeeping of a pool: its sandboxes, the waiting callers, and the next sandbox to create. No function here
waits."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from agentrl._util.backoff import pause
from agentrl.sandbox import Sandbox
from agentrl_sandbox.figures import LaneFigures, LaneName
from agentrl_sandbox.spec import SandboxSpec

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_TRIES = 5
"""After this number of consecutive failures, waiting callers get an error."""


@dataclass(slots=True, eq=False)
class PooledSandbox:
    """A sandbox of the pool. Times are in seconds of the event loop's clock."""

    sandbox: Sandbox
    spec: SandboxSpec
    born: float
    seen: float
    """The last time at which the sandbox was known to work."""


@dataclass(slots=True, eq=False)
class SandboxRequest:
    """A caller of `acquire`, who waits for a sandbox."""

    spec: SandboxSpec
    sandbox: asyncio.Future[PooledSandbox]


@dataclass(slots=True)
class Trouble:
    """Consecutive failed creations of one spec. During trouble, creations are tried one at a time, after a pause."""

    failures: int = 0
    until: float = 0.0
    """The time of the next attempt."""

    def add(self, now: float) -> bool:
        """Record a failure. Returns whether waiting callers should get an error."""
        self.failures += 1
        self.until = now + pause(self.failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        return self.failures >= _TRIES


@dataclass(slots=True, eq=False)
class Lane:
    """The sandboxes for a purpose, such as episodes or grading; at most `capacity` exist at the same time.

    Each sandbox is ready, in use, being created or being removed. Lanes never wait for each other.
    """

    name: LaneName
    capacity: int
    recent: deque[SandboxSpec]
    """The latest requested specs, as many as are kept ready."""
    waiting: deque[SandboxRequest] = field(default_factory=deque)
    ready: list[PooledSandbox] = field(default_factory=list)
    """The sandboxes that are ready, the oldest first."""
    in_use: set[PooledSandbox] = field(default_factory=set)
    making: Counter[SandboxSpec] = field(default_factory=Counter)
    removing: int = 0
    given_at: float = float("-inf")
    """The time when a caller last got a sandbox."""

    @property
    def room(self) -> int:
        return self.capacity - len(self.ready) - len(self.in_use) - self.making.total() - self.removing

    def ask(self, spec: SandboxSpec, *, once: bool = False) -> SandboxRequest:
        """Add a request for a sandbox. With `once`, no sandbox with this spec is prepared for later requests."""
        if self.recent.maxlen and not once:
            self.recent.append(spec)
        request = SandboxRequest(spec, asyncio.get_running_loop().create_future())
        self.waiting.append(request)
        return request

    def serve(self, now: float) -> None:
        """Give the ready sandboxes to waiting callers, in the order of their requests."""
        for request in list(self.waiting):
            box = next((box for box in reversed(self.ready) if box.spec == request.spec), None)
            if box is not None:
                self.ready.remove(box)
                self.waiting.remove(request)
                self.in_use.add(box)
                self.given_at = now
                request.sandbox.set_result(box)

    def unmet(self) -> list[SandboxSpec]:
        """Specs of waiting callers for whom no sandbox is being created, in the order of the requests."""
        in_progress, specs = Counter(self.making), []
        for request in self.waiting:
            if in_progress[request.spec]:
                in_progress[request.spec] -= 1
            else:
                specs.append(request.spec)
        return specs

    def missing(self) -> list[SandboxSpec]:
        """The specs of sandboxes to create so that enough are ready. Room for the sandboxes of waiting callers is kept
        free."""
        coming = self.making - Counter(request.spec for request in self.waiting)
        lacking = Counter(self.recent) - Counter(box.spec for box in self.ready) - coming
        return list(lacking.elements())[: max(0, self.room - len(self.unmet()))]

    def surplus(self) -> PooledSandbox | None:
        """A ready sandbox to give up, to make room for a sandbox that a caller waits for."""
        missing = len(self.unmet()) - self.room - self.removing
        return self.ready[0] if self.ready and missing > 0 else None

    def take_out(self, box: PooledSandbox) -> bool:
        """Count a sandbox as being removed. Returns False if it was counted so before."""
        if box in self.ready:
            self.ready.remove(box)
        elif box in self.in_use:
            self.in_use.remove(box)
        else:
            return False
        self.removing += 1
        return True

    def withdraw(self, request: SandboxRequest) -> PooledSandbox | None:
        """Remove a request. Returns the sandbox that the request got already, if any."""
        if request in self.waiting:
            self.waiting.remove(request)
        future = request.sandbox
        return future.result() if future.done() and not future.cancelled() and future.exception() is None else None

    def refuse(self, error: type[Exception], text: str, spec: SandboxSpec | None = None) -> None:
        """Raise an error in all waiting callers, or only in callers with this spec."""
        for request in list(self.waiting):
            if spec in (None, request.spec):
                self.waiting.remove(request)
                request.sandbox.set_exception(error(text))

    def figures(self) -> LaneFigures:
        return LaneFigures(
            self.capacity, len(self.ready), len(self.in_use), len(self.waiting), self.making.total(), self.removing
        )
