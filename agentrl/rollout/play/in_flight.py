"""The episodes in play in this process: their beginning, their turn, and the work for which they wait."""

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
"""Part of the session id of a repeated episode, after a failure of its environment."""
_LATE = 5
_LATE_S = 300.0
"""Seconds before which no episode is late. A late episode also takes several times the median of its kind."""
_REMEMBERED = 256


@dataclass(slots=True)
class Flight:
    """An episode in flight, or the scoring of a group."""

    name: str
    task: str
    kind: str = "train"
    """"train", or the name of an evaluation."""
    episode: bool = True
    started: float = field(default_factory=time.time)
    """Seconds since 1970."""
    activity: Activity = field(default_factory=Activity)
    trajectory: Trajectory | None = None
    """As soon as a turn has ended."""
    reported: Mapping[str, JSON] = field(default_factory=dict)
    """The last report of the worker that plays the episode."""

    def to_json(self) -> dict[str, JSON]:
        """The state as JSON: the present wait, and its beginning."""
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
        """The next work, where no wait is noted."""
        if self.trajectory is None:
            return "reset or first turn" if self.episode else "score"
        spans = self.trajectory.segment.spans
        return "env" if spans and spans[-1].kind == "sampled" else "engine"


_FLYING: dict[str, Flight] = {}
_STARTED: dict[str, float] = {}
"""When episodes began, by session id, until `take_started`. Evaluations use the same ids each time."""
DURATIONS: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
"""Seconds of the last episodes of each kind."""


@contextmanager
def flying(session_id: str, task: str, kind: str = "train", *, episode: bool = True) -> Iterator[None]:
    """List an episode while the block plays it."""
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
    """The episodes of a kind in flight for several times the duration of ended episodes."""
    took = DURATIONS[kind]
    if not took:
        return []
    limit = max(_LATE_S, _LATE * median(took))
    return [flight for flight in of_kind(kind) if flight.episode and time.time() - flight.started > limit]


def of_kind(kind: str) -> Sequence[Flight]:
    """The flights of a kind, with the scoring of groups, in the order of their beginning."""
    return [flight for flight in list(_FLYING.values()) if flight.kind == kind]


def note_turn(trajectory: Trajectory, session_id: str = "") -> None:
    """Note the end of a turn; for `EpisodeHooks.on_turn`. `session_id` names an episode with seats."""
    if (flight := _FLYING.get((session_id or trajectory.session_id).partition(AGAIN)[0])) is not None:
        flight.trajectory = trajectory


def note_remote(status: Mapping[str, Mapping[str, JSON]]) -> None:
    """Note a worker's report about its episodes, by session id."""
    for session_id, reported in status.items():
        if (flight := _FLYING.get(session_id)) is not None:
            flight.reported = reported


def in_flight() -> Mapping[str, Flight]:
    """The episodes by session id; a copy."""
    return {name: flight for name, flight in list(_FLYING.items()) if flight.episode}


def take_started(session_id: str) -> float | None:
    """When an episode began, in seconds since 1970; asked once."""
    return _STARTED.pop(session_id.partition(AGAIN)[0], None)
