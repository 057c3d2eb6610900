"""A model's text in one episode, without the observations: the input of a grader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Self

from agentrl._util.texts import texts_in
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Raw

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutput:
    """The turns of one episode as text, and the task's label. Observations are separate, in `observed`."""

    turns: tuple[str, ...] = ()
    """The text of each turn, thoughts and calls included, in order of time."""
    answer: str = ""
    """The last turn without thought and calls; "" if the thought never ended. For an agent, the last turn of the main
    conversation."""
    thought: bool = False
    """Whether the last turn holds a finished thought."""
    observed: tuple[str, ...] = ()
    """The observation after each turn; at most one text per turn. Only a reward for retrieval reads the texts."""
    prompt: JSON = ""
    label: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        task, actions, last = trajectory.task, trajectory.said, trajectory.final
        answer, thought = without_thought(last.content) if last else ("", False)
        return cls(
            turns=tuple(action.text for action in actions),
            answer=answer,
            thought=thought or bool(last and last.reasoning is not None and last.content),
            observed=_observed(trajectory),
            prompt=task.prompt.text if isinstance(task.prompt, Raw) else task.prompt,
            label=task.label,
            metadata=task.metadata,
        )

    @classmethod
    def of_turns(cls, turns: Sequence[str], *, thinking: bool = False, **fields: Any) -> Self:
        """Make a ModelOutput from the texts of the turns. `thinking`: the prompt ended inside a thought."""
        answer, thought = without_thought(turns[-1], opened=thinking) if turns else ("", False)
        return cls(turns=tuple(turns), answer=answer, thought=thought, **fields)

    def to_json(self) -> dict[str, JSON]:
        """The texts, without the task."""
        return {
            "turns": list(self.turns),
            "answer": self.answer,
            "thought": self.thought,
            "observed": list(self.observed),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON], **fields: Any) -> Self:
        """Read the output of `to_json`. `fields` are the fields that `to_json` leaves out."""
        return cls(
            turns=tuple(data["turns"]),
            answer=data["answer"],
            thought=data["thought"],
            observed=tuple(data["observed"]),
            **fields,
        )


def without_thought(turn: str, *, opened: bool = False) -> tuple[str, bool]:
    """A turn's text after the last thought, stripped, and whether a thought ended.

    Text after an unclosed <think> is left out, because an unfinished thought is no answer. `opened`: the prompt opened
    a thought, so a turn without </think> is a thought as a whole.
    """
    _, closed, answer = turn.rpartition(_CLOSE)
    if not closed and opened:
        return "", False
    return answer.partition(_OPEN)[0].strip(), bool(closed)


def _observed(trajectory: Trajectory) -> tuple[str, ...]:
    """The raw text after each turn, or the text of the messages after the turn's assistant message."""
    texts = list[str]()
    for turn, (start, end) in zip(trajectory.turns, _positions(trajectory), strict=False):
        messages = [message for message in trajectory.messages[start + 1 : end] if message.get("role") != "assistant"]
        read = "".join(text for message in messages for text in texts_in(message.get("content")))
        texts.append("" if turn.summary else turn.raw or read)  # after a summary, the model reads its own text
    while texts and not texts[-1]:
        texts.pop()
    return tuple(texts)


def _positions(trajectory: Trajectory) -> list[tuple[int, int]]:
    """For each turn, the index of the assistant message in `messages`, and the index after the following observations.

    Each turn has exactly one message of the model. In an agent's session the session records the index of each reply.
    """
    if trajectory.session is None:
        return list(pairwise([*trajectory.replies, len(trajectory.messages)]))
    nodes = sorted(trajectory.session["nodes"], key=lambda node: (node["segment"], node["message"]))
    ends = {
        node["turn"]: after["message"] if after and after["segment"] == node["segment"] else node["message"] + 1
        for node, after in zip_longest(nodes, nodes[1:])
    }
    return [(node["message"], ends[node["turn"]]) for node in sorted(nodes, key=lambda node: int(node["turn"]))]
