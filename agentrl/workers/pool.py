"""The driver's side: sends each request to the worker with the least work, and replaces workers that have ended."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from agentrl._util.concurrency import is_cancelled
from agentrl.errors import ConfigError, InfraError
from agentrl.workers.base import START_S, JobOrder, NoPlaceError, Transport, WorkerLink, WorkerLostError

log = logging.getLogger("agentrl")

_STARTS = 2
"""The number of consecutive failed starts of a worker that ends the run."""
_FRUITLESS = 5
"""The number of consecutive ends of a worker without a finished episode that ends the run."""
_CLOSE_S = 35.0
"""The most seconds for a worker to close its Envs. A single Env has `limits.close_s`, 30 by default."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The result of a request to a worker."""

    result: Any
    worker: str
    """The name of the process that handled the request. As `home` of a later request, the name leads to the same
    process, for data in memory."""
    lost: Sequence[str] = ()
    """The causes of the ends of earlier workers that had this request."""


@dataclass(slots=True, eq=False)
class _Seat:
    """The place of a worker: the present process, and the history of all its processes."""

    number: int
    link: WorkerLink | None = None
    ready: bool = False
    pending: int = 0
    starts: int = 0
    """The number of consecutive processes that ended before being ready."""
    fruitless: int = 0
    """The number of consecutive processes that ended without a finished episode."""
    lives: int = 0
    pid: int | None = None
    """The process id, on the node, of the last process that was ready."""

    @property
    def home(self) -> str:
        """The name of the present process."""
        return f"{self.number}.{self.lives}"


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """`size` workers that run one job. Use the pool in one event loop.

    A request goes to the ready worker with the fewest pending requests. If the worker ends, the request is sent to a
    second worker, and the cause is logged and returned. If the second worker ends, too, WorkerLostError is raised. A
    worker that has ended is replaced. If a worker ends twice in a row before being ready, or again and again without
    finishing an episode, each request raises ConfigError with the worker's last words. Only the end of the process
    counts as the end of a worker: a slow worker is not dead.
    """

    transport: Transport
    order: JobOrder
    size: int
    epoch: int = 0
    """The number of the rollout that new requests belong to. An abort concerns this epoch and earlier epochs."""
    _aborted: int = -1
    _order: bytes = b""
    seats: list[_Seat] = field(default_factory=list, init=False)
    _keepers: list[asyncio.Task[None]] = field(default_factory=list)
    _keys: count[int] = field(default_factory=count)
    _changed: asyncio.Future[None] = field(init=False)
    _fatal: Exception | None = None
    _asking: set[asyncio.Future[Any]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        """Start the workers, and wait until all are ready. Raises ConfigError."""
        self._order, self._changed = self.order.encoded(), asyncio.get_running_loop().create_future()
        await self.transport.check(self.size)
        self.seats = [_Seat(number) for number in range(self.size)]
        self._keepers = [asyncio.create_task(self._keep(seat)) for seat in self.seats]
        try:
            await self._until(lambda: all(seat.ready for seat in self.seats))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def play(self, request: bytes, *, home: str = "") -> WorkerAnswer:
        """The result of an encoded request. `home` is the name of the preferred worker, if still running."""
        lost: list[str] = []
        while True:
            seat = await self._chosen(home)
            try:
                result = await self._played(seat, request)
            except WorkerLostError as exc:
                lost.append(str(exc))
                if len(lost) > 1:
                    raise WorkerLostError(f"two workers ended while they played it: {'; '.join(lost)}") from exc
                log.info("an episode restarts in another worker: %s", exc)
                home = ""
                continue
            return WorkerAnswer(result, seat.home, tuple(lost))

    async def _played(self, seat: _Seat, request: bytes) -> Any:
        link, key = seat.link, next(self._keys)
        assert link is not None
        seat.pending += 1
        asking = asyncio.ensure_future(link.ask("play", key, self.epoch, self._aborted, request))
        self._asking.add(asking)
        try:
            result = await asking
        except WorkerLostError:
            seat.ready = seat.ready and seat.link is not link  # the seat's keeper may not know yet
            raise
        except asyncio.CancelledError:
            link.tell("cancel", key)
            if self._fatal is not None and not is_cancelled():
                raise self._fatal.with_traceback(None) from None
            raise
        finally:
            self._asking.discard(asking)
            seat.pending -= 1
        seat.fruitless = 0
        return result

    async def _chosen(self, home: str) -> _Seat:
        """The worker named `home`, or the ready worker with the fewest pending requests."""
        if self._fatal is None and home:
            for seat in self.seats:
                if seat.ready and seat.home == home:
                    return seat
        await self._until(lambda: any(seat.ready for seat in self.seats))
        return min((seat for seat in self.seats if seat.ready), key=lambda seat: seat.pending)

    async def _until(self, condition: Any) -> None:
        """Wait for a change of the workers. Raises the error that ended the pool."""
        while self._fatal is None and not condition():
            await asyncio.shield(self._changed)
        if self._fatal is not None:
            raise self._fatal.with_traceback(None)

    def abort(self) -> asyncio.Future[list[Any]]:
        """Abort the episodes of the present epoch in all workers. The future is done when each worker has got the
        message."""
        self._aborted = self.epoch
        links = [seat.link for seat in self.seats if seat.link is not None]
        return asyncio.gather(*(link.ask("abort", self.epoch) for link in links), return_exceptions=True)

    def next_epoch(self) -> None:
        """Begin the next rollout. An abort of the last rollout does not concern the new epoch."""
        self.epoch += 1

    @property
    def started(self) -> int:
        """How many times a worker has become ready so far."""
        return sum(seat.lives for seat in self.seats)

    async def status(self) -> list[Any]:
        """The present state of the episodes, for each ready worker."""
        links = [seat.link for seat in self.seats if seat.ready and seat.link is not None]
        replies = await asyncio.gather(*(link.ask("status") for link in links), return_exceptions=True)
        return [reply for reply in replies if not isinstance(reply, BaseException)]

    async def close(self) -> None:
        """Let each worker close its Envs, then end the workers, even if the caller is cancelled. Safe to call twice."""
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)
        links = [seat.link for seat in self.seats if seat.link is not None]
        for seat in self.seats:
            seat.ready, seat.link = False, None
        self.fail(InfraError("the workers have been closed"))
        await asyncio.gather(*map(_closed, links))

    async def _keep(self, seat: _Seat) -> None:
        """Start a worker, and start a replacement after each end."""
        try:
            while True:
                link = seat.link = None
                try:
                    link = seat.link = await self.transport.open(seat.number)
                    async with asyncio.timeout(START_S):  # wait_for may swallow a cancellation
                        seat.pid = await link.ask("begin", self._order, sys.path)
                    lost = await self._lived(seat, link)
                except WorkerLostError as exc:
                    seat.starts += 1
                    lost = exc
                self._judge(seat, link, lost)
                if link is not None:
                    await link.end()
        except NoPlaceError as exc:
            ready = sum(other.ready for other in self.seats)
            if seat.lives and ready:
                log.warning("%s; %d workers are left", exc, ready)
            else:  # the pool begins with all workers
                self.fail(exc)
        except TimeoutError:
            self.fail(
                ConfigError(f"worker {seat.number} was not ready after {START_S:g} s; does the Env's share wait?")
            )
        except Exception as exc:  # noqa: BLE001 - each request raises the error
            self.fail(exc)

    async def _lived(self, seat: _Seat, link: WorkerLink) -> WorkerLostError:
        """Wait until a ready worker ends. Returns the cause."""
        seat.lives, seat.starts = seat.lives + 1, 0
        seat.ready = True
        self._wake()
        lost = await asyncio.shield(link.lost)
        seat.ready = False
        seat.fruitless += 1
        return lost

    def _judge(self, seat: _Seat, link: WorkerLink | None, lost: WorkerLostError) -> None:
        """Raises ConfigError if a worker that has ended should not be replaced."""
        often = ""
        if seat.starts >= _STARTS:
            often = "ended again before it was ready"
        elif seat.fruitless >= _FRUITLESS:
            often = f"ended {seat.fruitless} times without finishing an episode"
        if often:
            words = "" if link is None else link.last_words()
            raise ConfigError(f"{lost}; worker {seat.number} {often}" + (f". It said last:\n{words}" if words else ""))
        log.warning("%s; another one takes its place", lost)

    def fail(self, exc: Exception) -> None:
        """End the pool. Each present and later request raises `exc`."""
        self._fatal = self._fatal or exc
        for asking in list(self._asking):
            asking.cancel()
        self._wake()

    def _wake(self) -> None:
        """Wake the callers that wait for a worker."""
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        if not changed.done():
            changed.set_result(None)


async def _closed(link: WorkerLink) -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await link.ask("close")
    except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - the other workers must be closed, too
        if not isinstance(exc, WorkerLostError):
            log.warning("%s did not close its Envs: %s", link.name(), exc)
    await link.end()
