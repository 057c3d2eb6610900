"""SandboxPool: sandboxes that are created ahead of time and used once, never more than the machine can run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from agentrl import uncounted
from agentrl.errors import AgentRLError, ConfigError, SandboxError
from agentrl.sandbox import MachineSnapshot, Sandbox, SandboxState, Snapshot
from agentrl_sandbox import machine
from agentrl_sandbox.backend import Backend, KeepsMachines, machine_of, open_backend
from agentrl_sandbox.figures import LaneName, PoolFigures, Tally
from agentrl_sandbox.lanes import Lane, PooledSandbox, SandboxRequest, Trouble
from agentrl_sandbox.machine import Machine
from agentrl_sandbox.spec import SandboxSpec
from agentrl_sandbox.workshop import SandboxFactory

log = logging.getLogger("agentrl")

_TENDED_S = 15.0
"""Seconds between two checks of the ready sandboxes."""
_LOOKED_AFTER_S = 120.0
"""Seconds that a ready sandbox has to respond to a check. Training in this event loop may delay the response."""
_FRESH_S = 2 * _TENDED_S
"""Seconds for which a ready sandbox needs no further check: a busy engine takes a second to answer."""
_RIPE = 0.25
"""Share of the lifetime after which a ready sandbox is replaced, so that no sandbox ends during use."""
_PREFETCHES = 2
_said: set[str] = set()
"""Messages that were logged, so that the pools of several event loops log each message once."""


class SandboxPool:
    """Sandboxes ready for episodes. Each sandbox is used once, then removed and replaced.

        async with SandboxPool("docker", SandboxSpec(image="my-image"), size=16) as pool:
            async with pool.acquire() as box:
                await box.exec("make test")
            async with pool.acquire(lane="grade") as box: ...

    A pool has three lanes. At most `size` sandboxes exist for episodes, and `grade` more for grading, so an episode
    with a sandbox can always be graded in a second sandbox. The third lane, for tests outside of the agent's sandbox,
    has as many sandboxes as `grade`. When all are in use, `acquire` waits: a smaller pool only makes a run slower. The
    wait does not count towards the deadline of the calling hook.

    `backend` is the name of a back end, which the pool opens and closes, or an open back end. `spec` is the default
    of `acquire`; with None, each call has to name a spec. Without `size`, the cores and the memory of the sandboxes'
    machine decide. Each lane has `warm` ready sandboxes, with the latest requested specs. At most `create` sandboxes
    are created at the same time, and `rate` in a second. If no sandbox has become free for `wait_s` seconds, `acquire`
    raises SandboxError.

    A pool belongs to the event loop in which the pool was entered. Entering raises SandboxError if the back end or the
    image is missing, and ConfigError if the back end cannot enforce `spec`.
    """

    def __init__(
        self,
        backend: str | Backend = "auto",
        spec: SandboxSpec | None = SandboxSpec(),  # noqa: B008 - a spec is frozen
        *,
        size: int | None = None,
        grade: int | None = None,
        warm: int | None = None,
        create: int | None = None,
        rate: float = 20.0,
        wait_s: float = 1800.0,
    ) -> None:
        for name, value in {"size": size, "grade": grade, "create": create, "rate": rate, "wait_s": wait_s}.items():
            if value is not None and value <= 0:
                raise ConfigError(f"SandboxPool: {name} must be positive, not {value}")
        self._chosen_backend, self._spec = backend, spec
        self._size, self._grade, self._warm, self._creating = size, grade, warm, create
        self._gap_s, self._wait_s = 1 / rate, wait_s
        self._plan(machine.here())
        self._troubles: dict[SandboxSpec, Trouble] = {}
        self._tally, self._prefetches = Tally(), asyncio.Semaphore(_PREFETCHES)
        self._workers, self._removers = set[asyncio.Task[None]](), set[asyncio.Task[None]]()
        self._next_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = AsyncExitStack()
        self._open = False

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise SandboxError("this sandbox pool was used before; make a new one")
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            chosen = self._chosen_backend
            backend = await stack.enter_async_context(open_backend(chosen)) if isinstance(chosen, str) else chosen
            self._backend, host_machine = backend, machine_of(backend)
            self._plan(host_machine)
            self._workshop = SandboxFactory(backend, self._tally, self._create)
            stack.push_async_callback(self._workshop.close)
            if self._spec is not None:
                backend.sandbox(self._spec)  # refused now, not in the first episode
                for image in self._spec.images:
                    await self._workshop.prepare(image)
            self._stack = stack.pop_all()
        self._open = True
        _say_once(backend.name, host_machine, self.lanes)
        self._begin(self._tend())
        self._schedule()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Remove all sandboxes, including sandboxes in use."""
        closing = asyncio.create_task(self._close(), name="sandbox pool: close")
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])  # every sandbox is removed, even now; each removal has a deadline
            raise

    @asynccontextmanager
    async def acquire(
        self, spec: SandboxSpec | None = None, *, lane: LaneName = "episode", restore: SandboxState | None = None
    ) -> AsyncIterator[Sandbox]:
        """A sandbox for this caller alone. With `restore`, it has the saved files, or is a copy of the saved machine.

        Raises SandboxError if no sandbox can be created, or if none has become free for `wait_s` seconds, and
        ConfigError if the back end cannot enforce `spec`, or did not make `restore`.
        """
        chosen_spec = spec or self._spec
        if chosen_spec is None:
            raise ConfigError("this sandbox pool has no default spec; name one: pool.acquire(spec)")
        if self._open and asyncio.get_running_loop() is not self._loop:
            raise ConfigError("a sandbox pool belongs to the event loop in which it was entered; make one in each loop")
        if once := isinstance(restore, MachineSnapshot):
            chosen_spec = self._copy(restore, chosen_spec)
        with uncounted():
            box = await self._take(self.lanes[lane], chosen_spec, once=once)
        try:
            if isinstance(restore, Snapshot):
                await box.sandbox.restore(restore)
            yield box.sandbox
        finally:
            self._retire(self.lanes[lane], box)

    async def snapshot(self, box: Sandbox) -> SandboxState:
        """The state of a sandbox of this pool, for `acquire(restore=...)`: the running machine if the back end can save
        machines, else the files.

        A machine is stored until the spec's `lifetime_s`, or until `release`. No command may run meanwhile. Raises
        SandboxError.
        """
        backend = self._backend
        if isinstance(backend, KeepsMachines) and backend.keeps_machines:
            return await backend.keep(box)
        return await box.snapshot()

    def prefetch(self, images: Iterable[str]) -> None:
        """Get images ready for later, in the background. A failure is logged; `acquire` raises the error again."""
        for image in images:
            self._begin(self._prefetch(image))

    def figures(self) -> PoolFigures:
        return self._tally.figures({name: lane.figures() for name, lane in self.lanes.items()})

    def _plan(self, host_machine: Machine) -> None:
        """Set the capacities of the lanes, from the arguments of the pool and from the sandboxes' machine."""
        self._machine, self._most = host_machine, host_machine.cores
        size, grade = _sizes(host_machine.room(self._spec or SandboxSpec()), self._size, self._grade)
        warm = min(size, 8) if self._warm is None else max(0, self._warm)
        self._create = self._creating or min(16, max(2, round(host_machine.cores)))
        self.lanes: dict[LaneName, Lane] = {  # grading first: grading sets an episode's sandbox free
            "tests": _lane("tests", grade, warm, None),
            "grade": _lane("grade", grade, warm, self._spec),
            "episode": _lane("episode", size, warm, self._spec),
        }

    def _fit(self) -> None:
        """Change the capacities after the loss or return of a host. `size` applies to all hosts together."""
        host_machine = machine_of(self._backend)
        if host_machine == self._machine:
            return
        self._machine, self._most = host_machine, max(self._most, host_machine.cores)
        size, grade = _sizes(host_machine.room(self._spec or SandboxSpec()), self._size, self._grade)
        share = host_machine.cores / self._most
        if self._size:
            size = max(1, round(share * size))
        if self._size or self._grade:
            grade = max(1, round(share * grade))
        for lane in self.lanes.values():
            lane.capacity = size if lane.name == "episode" else grade
        log.warning("sandbox pool: %d sandboxes at a time for episodes now, %d for grading", size, grade)

    # Handing out

    def _copy(self, machine_snapshot: MachineSnapshot, spec: SandboxSpec) -> SandboxSpec:
        """The spec of a sandbox that is a copy of a saved machine."""
        name = self._backend.name
        if machine_snapshot.backend != name:
            raise ConfigError(
                f"the machine was kept by back end {machine_snapshot.backend}, and this is {name}; use that one"
            )
        if machine_snapshot.until < time.time():
            raise SandboxError(
                "the machine is not kept any more: it is older than spec.lifetime_s, which may be raised"
            )
        return spec.model_copy(update={"image": machine_snapshot.image})

    async def _take(self, lane: Lane, spec: SandboxSpec, *, once: bool = False) -> PooledSandbox:
        """A sandbox that works, and that counts as in use. After an error or a cancellation, no sandbox is left."""
        since = self._now()
        while True:
            if not self._open:
                raise SandboxError("the sandbox pool is not open; use it within `async with`")
            request = lane.ask(spec, once=once)
            self._schedule()
            at_once = request.sandbox.done()
            try:
                box = await self._wait(lane, request)
                fault = "" if self._is_fresh(box) else await self._workshop.fault(box.sandbox)
            except BaseException:
                if (received := lane.withdraw(request)) is not None:
                    self._retire(lane, received)
                raise
            if not fault:
                self._tally.hand_out(self._now() - since, at_once)
                return box
            self._bury(lane, box, fault)

    def _is_fresh(self, box: PooledSandbox) -> bool:
        """Whether the sandbox worked a moment ago, and no request to its host has failed since."""
        return self._now() - box.seen < _FRESH_S and not getattr(box.sandbox, "doubtful", False)

    async def _wait(self, lane: Lane, request: SandboxRequest) -> PooledSandbox:
        began = self._now()
        while (patience := max(began, lane.given_at) + self._wait_s - self._now()) > 0:
            await asyncio.wait([request.sandbox], timeout=patience)
            if request.sandbox.done():
                return request.sandbox.result()
        raise SandboxError(
            f"no sandbox became free for {self._wait_s:g} s: {len(lane.in_use)} of the {lane.capacity} for lane "
            f"{lane.name!r} are in use, {len(lane.waiting)} callers wait; raise "
            f"{'size' if lane.name == 'episode' else 'grade'}, or have each episode give its sandbox back"
        )

    # Scheduling

    def _schedule(self) -> None:
        """Give ready sandboxes to waiting callers, then begin to create missing sandboxes. Call this after each
        change."""
        if not self._open:
            return
        for lane in self.lanes.values():
            lane.serve(self._now())
            while (box := lane.surplus()) is not None:
                self._retire(lane, box)
        for lane in self.lanes.values():
            for spec in lane.unmet():
                self._make(lane, spec)
        for lane in self.lanes.values():
            for spec in lane.missing():
                self._make(lane, spec)

    def _make(self, lane: Lane, spec: SandboxSpec) -> None:
        """Begin to create a sandbox, if the limits allow it."""
        making = [other.making for other in self.lanes.values()]
        if lane.room <= 0 or sum(specs.total() for specs in making) >= self._create:
            return
        due = self._next_at
        if (trouble := self._troubles.get(spec)) is not None:
            if any(specs[spec] for specs in making):
                return
            due = max(due, trouble.until)
        if due > self._now():
            self._schedule_at(due)
            return
        self._next_at = self._now() + self._gap_s
        lane.making[spec] += 1
        self._begin(self._fill(lane, spec))

    async def _fill(self, lane: Lane, spec: SandboxSpec) -> None:
        try:
            sandbox = await self._workshop.make(spec)
        except (SandboxError, ConfigError) as exc:
            self._note_failure(spec, exc)
        else:  # without an await, so a cancellation cannot lose the sandbox
            if self._troubles.pop(spec, None) is not None:
                log.info("sandboxes of %s can be made again", _name(spec))
            lane.ready.append(PooledSandbox(sandbox, spec, self._now(), self._now()))
        finally:
            lane.making -= Counter([spec])
            self._schedule()

    def _note_failure(self, spec: SandboxSpec, exc: AgentRLError) -> None:
        trouble = self._troubles.setdefault(spec, Trouble())
        if trouble.failures == 0:
            log.warning("a sandbox of %s could not be made: %s", _name(spec), exc)
        if trouble.add(self._now()) or isinstance(exc, ConfigError):
            for lane in self.lanes.values():
                lane.refuse(type(exc), f"no sandbox of {_name(spec)} can be made: {exc}", spec)

    def _schedule_at(self, due: float) -> None:
        if self._alarm is None or due < self._alarm.when():
            self._silence()
            self._alarm = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._schedule()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _retire(self, lane: Lane, box: PooledSandbox) -> None:
        """Remove a sandbox in the background. The sandbox counts towards the capacity until the removal is complete."""
        if lane.take_out(box):
            remover = asyncio.create_task(self._remove(lane, box), name="sandbox pool: remove")
            self._removers.add(remover)
            remover.add_done_callback(self._removers.discard)

    async def _remove(self, lane: Lane, box: PooledSandbox) -> None:
        await self._workshop.remove(box.sandbox)
        lane.removing -= 1
        self._fit()
        self._schedule()

    async def _tend(self) -> None:
        """Check the ready sandboxes regularly, and replace those that have ended or are old."""
        while True:
            await asyncio.sleep(_TENDED_S)
            self._fit()
            ready = [(lane, box) for lane in self.lanes.values() for box in lane.ready]
            await asyncio.gather(*(self._look_after(lane, box) for lane, box in ready))

    async def _look_after(self, lane: Lane, box: PooledSandbox) -> None:
        old = self._now() - box.born > _RIPE * box.spec.lifetime_s
        fault = "" if old else await self._workshop.fault(box.sandbox, _LOOKED_AFTER_S)
        if box not in lane.ready:
            return  # the sandbox was handed out meanwhile
        if old:
            self._retire(lane, box)
        elif fault:
            self._bury(lane, box, fault)
        else:
            box.seen = self._now()

    def _bury(self, lane: Lane, box: PooledSandbox, fault: str) -> None:
        self._tally.died += 1
        log.warning("sandbox %s died before it was used, and is replaced: %s", box.sandbox.sandbox_id, fault)
        self._retire(lane, box)

    async def _prefetch(self, image: str) -> None:
        try:
            async with self._prefetches:
                await self._workshop.prepare(image)
        except (SandboxError, ConfigError) as exc:
            log.warning("image %s could not be fetched ahead: %s", image, exc)

    async def _close(self) -> None:
        self._open = False
        self._silence()
        for lane in self.lanes.values():
            lane.refuse(SandboxError, "the sandbox pool was closed")
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)
        for lane in self.lanes.values():
            for box in [*lane.ready, *lane.in_use]:
                self._retire(lane, box)
        if self._removers:
            await asyncio.wait(self._removers)
        if self._tally.handed_out:
            log.info("sandbox pool: %s", self.figures())
        await self._stack.aclose()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        worker = asyncio.create_task(work, name="sandbox pool")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _sizes(room: int, size: int | None, grade: int | None) -> tuple[int, int]:
    """The capacities for episodes and for grading, on a machine that can run `room` sandboxes. Without `grade`, a
    quarter is for grading. Without `size`, the rest is for episodes."""
    grade = grade or max(1, (size or room) // 4)
    return size or max(1, room - grade), grade


def _lane(name: LaneName, capacity: int, warm: int, spec: SandboxSpec | None) -> Lane:
    warm = min(warm, capacity)
    return Lane(name, capacity, deque([] if spec is None else [spec] * warm, warm))


def _name(spec: SandboxSpec) -> str:
    return f"image {spec.image}" if spec.image else "the base image"


def _say_once(backend: str, host_machine: Machine, lanes: dict[LaneName, Lane]) -> None:
    text = (
        f"sandbox pool, {backend}: {lanes['episode'].capacity} sandboxes at a time for episodes, "
        f"{lanes['grade'].capacity} for grading ({host_machine.cores:g} cores, {host_machine.memory_mb >> 10} GiB); "
        "SandboxPool(size=..., grade=...) changes that"
    )
    if text not in _said:
        _said.add(text)
        log.info(text)
