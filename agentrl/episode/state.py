"""The state of an episode between two turns, and the form in which a host keeps an aborted episode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agentrl.env.env import Env
from agentrl.episode.reasoning import ReasoningStripper
from agentrl.sandbox import MachineSnapshot
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Observed, StopReason, Task, TurnOptions

ResumeMethod: TypeAlias = Literal["alive", "snapshot", "replay"]
Next: TypeAlias = Literal["generate", "step"]


@dataclass(slots=True)
class EpisodeState:
    """The data for continuing an episode, without the Env and the engine. Picklable."""

    trajectory: Trajectory
    thoughts: ReasoningStripper | None = None
    given: Task | None = None
    """The original task. The Env may have changed its own copy, which the trajectory holds."""
    turn_options: TurnOptions = field(default_factory=TurnOptions)
    """The Env's options for the next turn."""
    next: Next = "generate"
    """The next action: "generate" samples a turn or its rest, "step" calls the Env's step for the last action."""
    stop: StopReason | None = None
    """The reason for the end, already set before scoring. None while the episode goes on."""
    steps: int = 0
    """Number of actions for which the Env's step has returned."""
    played_s: float = 0.0
    """Seconds counted towards `Limits.episode_s`."""
    table: Table | None = None
    """With seats: the states of all seats. Parking keeps the state of the seat that began, which stands for the whole
    episode."""


@dataclass(slots=True)
class Table:
    """The states of the seats of an episode, and the acting seat. Picklable."""

    seats: dict[str, EpisodeState]
    seat: str
    """The acting seat."""
    first: str
    """The seat that had the first turn."""
    begun: bool = False
    """Whether the seat has read the observation of its turn."""
    opening: Observed = ()
    """The result of `reset`, which precedes the first observation of each seat."""
    answers: dict[str, Observed] = field(default_factory=dict)
    """Seat -> the observation after the seat's last turn. The seat reads the observation before the next turn."""
    early: dict[str, float] = field(default_factory=dict)
    """Seat -> the sum of its rewards before its first turn."""
    moves: list[str] = field(default_factory=list)
    """The seat of each answered turn, in order of time."""


@dataclass(frozen=True, slots=True)
class Parked:
    """An aborted episode for `resume_episode`. Picklable unless `how` is "alive"."""

    how: ResumeMethod
    episode: EpisodeState
    rng: Any
    """State of `Env.rng`."""
    env: Env | None = None
    """The open Env if `how` is "alive", else None. Whoever holds this object must close the Env."""
    saved: Any = None
    """The result of `Env.snapshot`."""
    machines: tuple[MachineSnapshot, ...] = ()
    """The machines in the snapshot. They are removed when the state is no longer needed."""
