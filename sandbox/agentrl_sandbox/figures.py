"""Statistics of a pool: numbers of sandboxes and failures, and durations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

LaneName: TypeAlias = Literal["episode", "grade", "tests"]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the last thousand durations, in seconds; all zero if no duration was recorded."""

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
    """The present numbers of a lane: sandboxes for a purpose, such as episodes or grading."""

    capacity: int
    ready: int
    in_use: int
    waiting: int
    """The number of callers of `acquire` that wait for a sandbox."""
    making: int
    removing: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """The present numbers of a pool, and its totals since it was opened."""

    lanes: Mapping[LaneName, LaneFigures]
    created: int
    removed: int
    handed_out: int
    at_once: int
    """The number of `acquire` calls that got a sandbox without waiting."""
    failed: int
    """The number of failed attempts to create a sandbox. Each is followed by a new attempt."""
    died: int
    """The number of sandboxes that ended before they were used."""
    left_behind: int
    """The number of sandboxes that could not be removed. The back end's reaper removes them later."""
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
    """Counts events for `PoolFigures`."""

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
