"""Reads agentrl's trajectories, as `Trajectory.to_json` writes them.

`Trajectory.from_json` refuses a record that contradicts itself, or of another version. An audit counts the lost tokens
of such a record, and the viewer shows the record.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from agentrl.trajectory.outline import Outline, answer_of, counts, largest, place_of
from agentrl.types import JSON
from agentrl.view.images import images_of, placed
from agentrl.view.model import (
    Author,
    EpisodeRecord,
    TokenProblem,
    TokenRun,
    TokenSequence,
    TurnFacts,
    column,
    contradictions,
    count,
    fill,
    of_response,
    of_sampled,
)

_AUTHORS: Mapping[str, Author] = {
    "sampled": "model",
    "observation": "env",
    "close": "template",
    "prompt": "template",
}
_FACTS = ("task", "info", "failure", "reward_parts", "branch_rewards", "tools", "unread")


def is_own(data: JSON) -> bool:
    return isinstance(data, dict) and "tokens" in data and "spans" in data and "turns" in data


def read(data: Mapping[str, JSON]) -> EpisodeRecord:
    """The episode of a trajectory. Raises KeyError, TypeError or ValueError for a value that is not a trajectory's
    JSON."""
    earlier: Sequence[Mapping[str, JSON]] = data.get("earlier", ())
    training = data.get("training") or {}
    sequences, first, images = list[TokenSequence](), 0, images_of(data["messages"])
    for number, segment in enumerate((*earlier, data)):
        last = number == len(earlier)
        turns = len(data["turns"]) - first if last else len(segment["turns"])
        sequence = _sequence(segment, 0 if last else first)
        if segment.get("first_message") and not sequence.name:
            sequence.name = f"segment {number + 1}, after a summary"
        sequence.images = placed(segment.get("media", ()), images, len(sequence.ids))
        _add_training(sequence, training, number, first)
        sequences.append(sequence)
        first += turns
    turns_of_episode = [_turn(turn) for turn in data["turns"]]
    outline = count(_outline(data, turns_of_episode, training), sequences)
    outline.gap = training.get("gap") if outline.gap is None else outline.gap
    return EpisodeRecord(
        outline,
        "agentrl",
        sequences,
        turns=turns_of_episode,
        messages=data["messages"],
        facts={name: data[name] for name in _FACTS if data.get(name)},
        session=data.get("session"),
        linear=None if data.get("session") else True,
    )


def _outline(data: Mapping[str, JSON], turns: Sequence[TurnFacts], training: Mapping[str, JSON]) -> Outline:
    failure, seat = data.get("failure"), data.get("seat", "")
    return Outline(
        name=data["session_id"],
        task=data["task"]["id"],
        **place_of(data["session_id"], training, seat),
        seat=seat,
        reward=data["reward"],
        reward_parts=data["reward_parts"],
        stop=data["stop"],
        failure=f"{failure['kind']}/{failure['boundary']}: {failure['error']}" if failure else None,
        turns=len(turns),
        calls=dict(Counter(name for turn in turns for name in turn.calls)),
        tool_errors=counts(data["info"].get("tool_errors")),
        bad_calls=sum(bool(turn.bad_call) for turn in turns),
        started=training.get("started"),
        generate_s=round(sum(turn.generate_s or 0.0 for turn in turns), 4),
        env_s=round(sum(turn.env_s or 0.0 for turn in turns), 4),
        advantage=largest(training.get("advantages")),
        answer=answer_of(data["messages"]),
    )


def _sequence(data: Mapping[str, JSON], first_turn: int) -> TokenSequence:
    start = data["prompt_length"]
    ids = array("i", data["tokens"])
    runs = [TokenRun(0, start, "prompt")] if start else []
    for span in data["spans"]:
        sampled, masked = span["kind"] == "sampled", span.get("masked")
        runs.append(
            TokenRun(
                start + span["start"],
                start + span["stop"],
                _AUTHORS[span["kind"]],
                span["turn"] + first_turn,
                sampled and masked is None,
                masked,
                span.get("weight_version"),
            )
        )
    sequence = TokenSequence(ids, runs, start, name=data.get("branch", ""))
    sequence.engine = of_sampled(sequence, of_response(sequence, "log_probs", data["log_probs"]))
    ends = [0, *(run.stop for run in runs)]
    if ends != [*(run.start for run in runs), len(ids)]:
        sequence.problems.append(TokenProblem("broken", "the spans leave a gap, or end before or after the tokens"))
    else:
        sequence.problems += contradictions(sequence, of_response(sequence, "loss_mask", data["loss_mask"]))
    return sequence


def _add_training(sequence: TokenSequence, training: Mapping[str, JSON], number: int, first_turn: int) -> None:
    """Add the trainer's data to a sequence: the advantage of each turn, and the log-probs of sampled tokens."""
    advantages = training.get("advantages") or ()
    if number < len(advantages) and advantages[number]:
        of_turn = advantages[number]
        sequence.advantages = column(len(sequence.ids))
        for run in sequence.runs:
            if run.author == "model":
                turn = run.turn - first_turn if len(of_turn) > 1 else 0
                value = of_turn[turn] if 0 <= turn < len(of_turn) else math.nan
                sequence.advantages[run.start : run.stop] = array("f", [value]) * run.length
    log_probs = training.get("log_probs") or ()
    if number < len(log_probs) and log_probs[number]:
        trainer = column(len(sequence.ids))
        values = [math.nan if value is None else value for value in log_probs[number]]
        if fill(trainer, sequence.runs, values):
            sequence.trainer = trainer


def _turn(data: Mapping[str, JSON]) -> TurnFacts:
    return TurnFacts(
        data["finish_reason"],
        data["calls"],
        data.get("bad_call") or data.get("parse_error"),
        data["reward"],
        data["generate_s"],
        data["env_s"],
        data["sampled_tokens"],
    )
