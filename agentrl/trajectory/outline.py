"""A summary of an episode in one line of JSON, without tokens: for lists of thousands of episodes.

The trainer writes the lines next to each file of trajectories, so that a reader need not parse the trajectories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Self

from agentrl.trajectory.trajectory import Trajectory, total_ledger
from agentrl.types import JSON

_AGAIN = re.compile(r"-again\d*$")
"""The suffix of the session id of a repeated episode."""
_ANSWER = 60
"""Number of last characters of the answer that are stored."""


@dataclass(slots=True, kw_only=True)
class Outline:
    """The summary of one episode. None or an empty mapping stands for an unknown value."""

    name: str = ""
    """The session id, or another name from the program that played the episode."""
    task: str = ""
    step: int | None = None
    group: int | None = None
    member: int | None = None
    seat: str = ""
    """In an Env with seats: the seat of the conversation."""
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    stop: str | None = None
    failure: str | None = None
    """`kind/boundary: error`"""
    turns: int = 0
    sequences: int = 1
    """Number of trained token sequences."""
    tokens: int = 0
    """Tokens of all sequences, prompts included."""
    sampled: int = 0
    trained: int = 0
    masked: Mapping[str, int] = field(default_factory=dict)
    observation: int = 0
    scaffold: int = 0
    calls: Mapping[str, int] = field(default_factory=dict)
    """Tool name -> number of calls."""
    tool_errors: Mapping[str, int] = field(default_factory=dict)
    bad_calls: int = 0
    started: float | None = None
    """Unix time of the start, in seconds."""
    generate_s: float = 0.0
    env_s: float = 0.0
    advantage: float | None = None
    """The token advantage of the largest magnitude; 0.0 if all rewards of the group are equal."""
    gap: float | None = None
    """The largest difference of a token's log-prob between engine and trainer."""
    answer: str = ""

    @classmethod
    def of(cls, trajectory: Trajectory, training: Mapping[str, JSON]) -> Self:
        """The summary of a trajectory. `training` holds the trainer's data about the episode."""
        turns, failure, ledger = trajectory.turns, trajectory.failure, total_ledger(trajectory.segments)
        return cls(
            name=trajectory.session_id,
            task=trajectory.task.id,
            **place_of(trajectory.session_id, training, trajectory.seat),
            seat=trajectory.seat,
            reward=trajectory.reward,
            reward_parts=dict(trajectory.reward_parts),
            stop=None if trajectory.stop is None else str(trajectory.stop),
            failure=f"{failure.kind}/{failure.boundary}: {failure.error}" if failure else None,
            turns=len(turns),
            sequences=len(trajectory.segments),
            tokens=sum(segment.length for segment in trajectory.segments),
            sampled=ledger.sampled,
            trained=ledger.trained,
            masked=dict(ledger.masked),
            observation=ledger.observation,
            scaffold=ledger.scaffold,
            calls=dict(Counter(name for turn in turns for name in turn.calls)),
            tool_errors=counts(trajectory.info.get("tool_errors")),
            bad_calls=sum(turn.bad_call is not None for turn in turns),
            started=training.get("started"),
            generate_s=round(sum(turn.generate_s for turn in turns), 4),
            env_s=round(sum(turn.env_s for turn in turns), 4),
            advantage=largest(training.get("advantages")),
            gap=training.get("gap"),
            answer=answer_of(trajectory.messages),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Self:
        """Read the output of `to_json`. Unknown keys, which a later version may write, are left out."""
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})

    def to_json(self) -> dict[str, JSON]:
        """The fields that differ from their defaults."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (_DEFAULTS[name], {})}


_DEFAULTS = {column.name: None if column.default is MISSING else column.default for column in fields(Outline)}


def place_of(session_id: str, training: Mapping[str, JSON], seat: str = "") -> dict[str, JSON]:
    """The keys step, group and member: from `training`, or else from a session id such as `train-000001-0003-005`. The
    id may end with the number of a repetition and with a seat."""
    names = ("step", "group", "member")
    if "group" in training:
        return {name: training.get(name) for name in names}
    name = session_id.removesuffix(f"-{seat}") if seat else session_id
    parts = _AGAIN.sub("", name).split("-")[1:]
    if len(parts) != len(names) or not all(part.isdecimal() for part in parts):
        return dict.fromkeys(names)
    return dict(zip(names, map(int, parts), strict=True))


def answer_of(messages: Sequence[Mapping[str, JSON]]) -> str:
    """The last characters of the model's last text."""
    for message in reversed(messages):
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str) and content.strip():
            return content.strip()[-_ANSWER:]
    return ""


def largest(advantages: Iterable[Iterable[float]] | None) -> float | None:
    """The advantage of the largest magnitude; None without advantages."""
    values = [value for of_segment in advantages or () for value in of_segment if value is not None]
    return max(values, key=abs) if values else None


def counts(data: JSON) -> dict[str, int]:
    """Counts by name. Empty for any other value, because an Env may store its own value under the same key."""
    if not isinstance(data, Mapping):
        return {}
    return {str(name): count for name, count in data.items() if isinstance(count, int)}
