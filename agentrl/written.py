"""What a model wrote in one episode, apart from what it read: all that a grader looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from agentrl.trajectory import Trajectory
from agentrl.types import JSON, Raw

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The turns of one episode as text, and the task's label. Nothing in `turns` was observed."""

    turns: tuple[str, ...] = ()
    """Each turn as the model wrote it, thoughts and calls included."""
    answer: str = ""
    """The last turn without its thought and calls; "" if the thought never ended."""
    thought: bool = False
    """Whether the last turn holds a thought that ended."""
    observed: tuple[str, ...] = ()
    """What followed each turn; at most one text a turn. Only a reward for retrieval reads it."""
    prompt: JSON = ""
    label: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        task, said = trajectory.task, trajectory.said
        last = said[-1] if said else None
        answer, thought = without_thought(last.content) if last else ("", False)
        return cls(
            turns=tuple(action.text for action in said),
            answer=answer,
            thought=thought or bool(last and last.reasoning is not None and last.content),
            observed=_observed(trajectory),
            prompt=task.prompt.text if isinstance(task.prompt, Raw) else task.prompt,
            label=task.label,
            metadata=task.metadata,
        )

    @classmethod
    def of_turns(cls, turns: Sequence[str], *, thinking: bool = False, **given: Any) -> Self:
        """Of the turns' texts alone. `thinking`: the prompt ended inside a thought."""
        answer, thought = without_thought(turns[-1], opened=thinking) if turns else ("", False)
        return cls(turns=tuple(turns), answer=answer, thought=thought, **given)

    def to_json(self) -> dict[str, JSON]:
        """The texts, without the task."""
        return {
            "turns": list(self.turns),
            "answer": self.answer,
            "thought": self.thought,
            "observed": list(self.observed),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON], **given: Any) -> Self:
        """Read the output of `to_json`; `given` are the fields it leaves out."""
        return cls(
            turns=tuple(data["turns"]),
            answer=data["answer"],
            thought=data["thought"],
            observed=tuple(data["observed"]),
            **given,
        )


def without_thought(turn: str, *, opened: bool = False) -> tuple[str, bool]:
    """A turn's text behind its last thought, stripped, and whether a thought ended.

    An unfinished thought is no answer: what follows a <think> that is never closed is left out. `opened`: the prompt
    opened a thought, so without </think> all of the turn is one.
    """
    _, closed, behind = turn.rpartition(_CLOSE)
    if not closed and opened:
        return "", False
    return behind.partition(_OPEN)[0].strip(), bool(closed)


def _observed(trajectory: Trajectory) -> tuple[str, ...]:
    """The raw text behind each turn, or that of the messages behind its assistant message."""
    written, found = _positions(trajectory), list[str]()
    for turn, start, end in zip(trajectory.turns, written, [*written[1:], len(trajectory.messages)], strict=False):
        said = "".join(_text(message.get("content")) for message in trajectory.messages[start + 1 : end])
        found.append(turn.raw or said)
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _positions(trajectory: Trajectory) -> list[int]:
    """Where in `messages` the model's own turns stand: the last assistant messages, one a turn.

    The prompt may hold assistant messages too. They come first.
    """
    own = [i for i, message in enumerate(trajectory.messages) if message.get("role") == "assistant"]
    return own[len(own) - len(trajectory.said) :]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
