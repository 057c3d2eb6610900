"""The state of an episode between two of its turns, and an aborted episode as its host keeps it."""

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
    """The state of an episode: all it needs to continue, except the Env, the engine and the like. Picklable."""

    trajectory: Trajectory
    thoughts: ReasoningStripper | None = None
    given: Task | None = None
    """The task as it was given. The Env may have changed its own copy, which the trajectory holds."""
    turn_options: TurnOptions = field(default_factory=TurnOptions)
    """The Env's options for the next turn."""
    next: Next = "generate"
    """The next thing to do: a generation (or the rest of one), or the Env's step for the last action."""
    stop: StopReason | None = None
    """Why it ended, once it has. It may not be scored yet."""
    steps: int = 0
    """How many actions the Env has answered."""
    played_s: float = 0.0
    """Seconds that count towards `Limits.episode_s`."""
    table: Table | None = None
    """With seats: the states of all, this one included. This one is the first seat's, and stands for the episode."""


@dataclass(slots=True)
class Table:
    """Who sits in an episode with seats, and whose turn it is. Picklable."""

    seats: dict[str, EpisodeState]
    seat: str
    """Whose turn it is."""
    first: str
    """Who began."""
    begun: bool = False
    """Whether that seat has read what begins its turn."""
    opening: Observed = ()
    """The result of `reset`, which precedes the first observation of each seat."""
    answers: dict[str, Observed] = field(default_factory=dict)
    """Answers to a seat's last turn, which it reads before its next one."""
    early: dict[str, float] = field(default_factory=dict)
    """Rewards of seats that have had no turn."""
    moves: list[str] = field(default_factory=list)
    """The seat of each turn that the Env has answered, in order of time."""


@dataclass(frozen=True, slots=True)
class Parked:
    """An aborted episode, which `resume_episode` continues where it stopped. Picklable unless it is "alive"."""

    how: ResumeMethod
    episode: EpisodeState
    rng: Any
    """State of `Env.rng`."""
    env: Env | None = None
    """The open Env if it is "alive", else None. The owner of this object must close it."""
    saved: Any = None
    """The result of `Env.snapshot`."""
    machines: tuple[MachineSnapshot, ...] = ()
    """The machines in it, which are removed when the state is no longer needed."""
