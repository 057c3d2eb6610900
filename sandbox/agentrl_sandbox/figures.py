"""The figures of a pool: counts of sandboxes and failures, and durations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

LaneName: TypeAlias = Literal["episode", "grade", "tests"]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the last thousand times, in seconds; all zero if no time was recorded."""

    p50: float
    p90: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Quantiles:
        ordered = sorted(seconds) or [0.0]
        return cls(*(ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99, 1.0)))

    def __str__(self) -> str:
        return f"p50 {self.p50 * 1000:.0f} ms, p99 {self.p99 * 1000:.0f} ms"


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One lane at present."""

    capacity: int
    ready: int
    in_use: int
    waiting: int
    """Callers of `acquire` still without a sandbox."""
    making: int
    removing: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """A pool at present, and the totals so far."""

    lanes: Mapping[LaneName, LaneFigures]
    created: int
    removed: int
    handed_out: int
    at_once: int
    """Sandboxes handed out without a wait."""
    failed: int
    """Failed creations, each followed by a retry."""
    died: int
    """Sandboxes that died before use."""
    left_behind: int
    """Sandboxes left after a failed removal. The back end's reaper removes these later."""
    wait: Quantiles
    """Seconds from the call of `acquire` until the sandbox is ready."""
    create: Quantiles

    def __str__(self) -> str:
        return (
            f"{self.handed_out} sandboxes handed out, {self.at_once} of them at once (wait: {self.wait}); "
            f"{self.created} created ({self.create}), {self.removed} removed, {self.failed} failed, {self.died} died, "
            f"{self.left_behind} left over"
        )


@dataclass(slots=True)
class Tally:
    """The running counts for `PoolFigures`."""

    created: int = 0
    removed: int = 0
    handed_out: int = 0
    at_once: int = 0
    failed: int = 0
    died: int = 0
    left_behind: int = 0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    creates: deque[float] = field(default_factory=lambda: deque(maxlen=1000))

    def hand_out(self, waited_s: float, at_once: bool) -> None:
        self.handed_out += 1
        self.at_once += at_once
        self.waits.append(waited_s)

    def figures(self, lanes: Mapping[LaneName, LaneFigures]) -> PoolFigures:
        return PoolFigures(
            lanes,
            self.created,
            self.removed,
            self.handed_out,
            self.at_once,
            self.failed,
            self.died,
            self.left_behind,
            Quantiles.of(self.waits),
            Quantiles.of(self.creates),
        )
