"""The episodes in flight in this process: the beginning, the turn, and the present wait of each episode."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from agentrl._util.activity import Activity, activity
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

AGAIN = "-again"
"""The part of a session id that marks a repetition of an episode after a failure of its environment."""
_LATE = 5
_LATE_S = 300.0
"""Seconds before which no episode is late. To be late, an episode must also take _LATE times the median of its kind."""
_REMEMBERED = 256


@dataclass(slots=True)
class Flight:
    """An episode in flight, or the scoring of a group."""

    name: str
    task: str
    kind: str = "train"
    """Training ("train"), or the name of an evaluation."""
    episode: bool = True
    started: float = field(default_factory=time.time)
    """The beginning, in seconds since 1970."""
    activity: Activity = field(default_factory=Activity)
    trajectory: Trajectory | None = None
    """The trajectory so far. None until the first turn has ended."""
    reported: Mapping[str, JSON] = field(default_factory=dict)
    """The last report of the worker that plays the episode."""

    def to_json(self) -> dict[str, JSON]:
        """The state as JSON: the work that the flight waits for at present, and the time since when."""
        if self.reported:
            return {**self.reported, "started": self.started}
        name, since = self.activity.now
        return {
            "name": self.name,
            "task": self.task,
            "started": self.started,
            "turn": len(self.trajectory.turns) if self.trajectory is not None else 0,
            "waiting": name or self._between(),
            "since": since,
        }

    def _between(self) -> str:
        """The work that comes next, while no wait is recorded."""
        if self.trajectory is None:
            return "reset or first turn" if self.episode else "score"
        spans = self.trajectory.segment.spans
        return "env" if spans and spans[-1].kind == "sampled" else "engine"


_FLYING: dict[str, Flight] = {}
_STARTED: dict[str, float] = {}
"""Session id -> the beginning of the episode in seconds since 1970, until `take_started`. Evaluations use the same ids
each time."""
DURATIONS: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
"""Kind -> the seconds of its last episodes."""


@contextmanager
def flying(session_id: str, task: str, kind: str = "train", *, episode: bool = True) -> Iterator[None]:
    """List an episode as in flight while the context is open."""
    flight = _FLYING[session_id] = Flight(session_id, task, kind, episode)
    if episode:
        _STARTED[session_id] = flight.started
    token = activity.set(flight.activity)
    try:
        yield
    finally:
        activity.reset(token)
        _FLYING.pop(session_id, None)
        if episode:
            DURATIONS[kind].append(time.time() - flight.started)


def late(kind: str) -> Sequence[Flight]:
    """The episodes of a kind that are in flight for several times the median duration of ended episodes."""
    took = DURATIONS[kind]
    if not took:
        return []
    limit = max(_LATE_S, _LATE * median(took))
    return [flight for flight in of_kind(kind) if flight.episode and time.time() - flight.started > limit]


def of_kind(kind: str) -> Sequence[Flight]:
    """The episodes of a kind in flight and the scoring of its groups, in the order of their beginning."""
    return [flight for flight in list(_FLYING.values()) if flight.kind == kind]


def note_turn(trajectory: Trajectory, session_id: str = "") -> None:
    """Record the end of a turn; for `EpisodeHooks.on_turn`. For an episode with seats, `session_id` is the id of the
    episode."""
    if (flight := _FLYING.get((session_id or trajectory.session_id).partition(AGAIN)[0])) is not None:
        flight.trajectory = trajectory


def note_remote(status: Mapping[str, Mapping[str, JSON]]) -> None:
    """Record a worker's report about its episodes, by session id."""
    for session_id, reported in status.items():
        if (flight := _FLYING.get(session_id)) is not None:
            flight.reported = reported


def in_flight() -> Mapping[str, Flight]:
    """A copy of the episodes in flight, by session id."""
    return {name: flight for name, flight in list(_FLYING.items()) if flight.episode}


def take_started(session_id: str) -> float | None:
    """When an episode began, in seconds since 1970. None after the first call for an episode."""
    return _STARTED.pop(session_id.partition(AGAIN)[0], None)
