"""Reads agentrl's trajectories, as `Trajectory.to_json` writes them, without building a Trajectory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

from agentrl.trajectory.outline import Outline
from agentrl.types import JSON
from agentrl.view.images import images_of, placed
from agentrl.view.model import Author, EpisodeRecord, TokenProblem, TokenRun, TokenSequence, TurnFacts, column, fill

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
    """Raises KeyError, TypeError or ValueError for a value that is not a trajectory's JSON."""
    outline = Outline.of(data)
    earlier: Sequence[Mapping[str, JSON]] = data.get("earlier", ())
    training = data.get("training") or {}
    sequences, first, images = list[TokenSequence](), 0, images_of(data["messages"])
    for number, segment in enumerate((*earlier, data)):
        last = number == len(earlier)
        turns = len(data["turns"]) - first if last else len(segment["turns"])
        sequence = _sequence(segment, 0 if last else first)
        sequence.images = placed(segment.get("media", ()), images, len(sequence.ids))
        _add_training(sequence, training, number, first)
        sequences.append(sequence)
        first += turns
    outline.gap = max(
        (gap for sequence_with_gap in sequences if (gap := sequence_with_gap.gap()) is not None), default=outline.gap
    )
    return EpisodeRecord(
        outline,
        "agentrl",
        sequences,
        turns=[_turn(turn) for turn in data["turns"]],
        messages=data["messages"],
        facts={name: data[name] for name in _FACTS if data.get(name)},
        session=data.get("session"),
        linear=None if data.get("session") else True,
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
    _add_engine(sequence, data["log_probs"])
    sequence.problems = _broken(sequence, data["loss_mask"])
    return sequence


def _add_engine(sequence: TokenSequence, log_probs: Sequence[float]) -> None:
    """The file holds 0.0 for tokens that were not sampled."""
    start, length = sequence.prompt_length, len(sequence.ids)
    if len(log_probs) != length - start:
        sequence.problems.append(TokenProblem("broken", f"{len(log_probs)} log-probs for {length - start} tokens"))
        return
    of_response = array("f", log_probs)
    sequence.engine = column(length)
    for run in sequence.runs:
        if run.author == "model":
            sequence.engine[run.start : run.stop] = of_response[run.start - start : run.stop - start]


def _broken(sequence: TokenSequence, loss_mask: Sequence[int]) -> list[TokenProblem]:
    """Where mask and spans contradict each other."""
    problems = list(sequence.problems)
    start = sequence.prompt_length
    if len(loss_mask) != len(sequence.ids) - start:
        return [
            *problems,
            TokenProblem("broken", f"{len(loss_mask)} mask values for {len(sequence.ids) - start} tokens"),
        ]
    end = 0
    for run in sequence.runs:
        if run.start != end:
            return [*problems, TokenProblem("broken", f"the spans leave a gap at token {end}")]
        end = run.stop
        if run.author == "prompt":
            continue
        ones = sum(loss_mask[run.start - start : run.stop - start])
        if run.trained and ones != run.length:
            problems.append(TokenProblem("masked without a reason", f"from token {run.start}", run.length - ones))
        elif not run.trained and ones:
            kind = "trained although masked" if run.author == "model" else "trained, but not sampled"
            problems.append(TokenProblem(kind, f"from token {run.start}", ones))
    if end != len(sequence.ids):
        problems.append(TokenProblem("broken", f"the spans end at token {end} of {len(sequence.ids)}"))
    return problems


def _add_training(sequence: TokenSequence, training: Mapping[str, JSON], number: int, first_turn: int) -> None:
    """The trainer's data: advantages by turn, and the trainer's log-probs of sampled tokens."""
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
