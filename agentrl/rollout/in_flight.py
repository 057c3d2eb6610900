"""The episodes that are being played in this process: since when, in which turn, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

AGAIN = "-again"
"""In the session id of an episode that is played once more, after its environment failed."""


@dataclass(slots=True)
class Flight:
    """One episode in flight."""

    name: str
    task: str
    started: float = field(default_factory=time.time)
    """Seconds since 1970."""
    since: float = field(default_factory=time.time)
    """When it last ended a turn, or a watcher saw that it waits for something else."""
    waiting: str = "reset or first turn"
    trajectory: Trajectory | None = None
    """As soon as a turn has ended."""
    reported: Mapping[str, JSON] = field(default_factory=dict)
    """The last report of the worker that plays it."""

    def to_json(self) -> dict[str, JSON]:
        """Its state. Called now and then, it notices a change of what the episode waits for."""
        if self.reported:
            return {**self.reported, "started": self.started}
        if (waiting := self._waiting()) != self.waiting:
            self.waiting, self.since = waiting, time.time()
        turns = len(self.trajectory.turns) if self.trajectory is not None else 0
        return {
            "name": self.name,
            "task": self.task,
            "started": self.started,
            "turn": turns,
            "waiting": self.waiting,
            "since": self.since,
        }

    def _waiting(self) -> str:
        if self.trajectory is None:
            return self.waiting
        spans = self.trajectory.segment.spans
        return "env" if spans and spans[-1].kind == "sampled" else "engine"


_FLYING: dict[str, Flight] = {}
_STARTED: dict[str, float] = {}
"""When episodes began, by session id, until `take_started`. Evaluations use the same ids each time."""


@contextmanager
def flying(session_id: str, task: str) -> Iterator[None]:
    """List an episode while the block plays it."""
    flight = _FLYING[session_id] = Flight(session_id, task)
    _STARTED[session_id] = flight.started
    try:
        yield
    finally:
        _FLYING.pop(session_id, None)


def note_turn(trajectory: Trajectory, session_id: str = "") -> None:
    """An episode has ended a turn; for `EpisodeHooks.on_turn`. `session_id` is that of an episode with seats."""
    if (flight := _FLYING.get((session_id or trajectory.session_id).partition(AGAIN)[0])) is not None:
        flight.trajectory, flight.since = trajectory, time.time()


def note_remote(status: Mapping[str, Mapping[str, JSON]]) -> None:
    """Note what a worker reports about its episodes, by session id."""
    for session_id, reported in status.items():
        if (flight := _FLYING.get(session_id)) is not None:
            flight.reported = reported


def in_flight() -> Mapping[str, Flight]:
    """The episodes by session id; a copy."""
    return dict(_FLYING)


def take_started(session_id: str) -> float | None:
    """When an episode began, in seconds since 1970; asked once."""
    return _STARTED.pop(session_id.partition(AGAIN)[0], None)
