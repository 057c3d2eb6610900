"""The records of a run besides the trajectories, for `agentrl view`.

index/step_000010.jsonl   a summary of every episode (see Outline); `offset`, `length`: bytes of its trajectory
events.jsonl              warnings of canaries and others, with their step
imitation.jsonl           the loss of each step of imitation
inflight.json             the running episodes, written every few seconds

Each stored trajectory gets a key `training`: step, group and member, and for each segment the advantages by turn and
the trainer's log-probs of sampled tokens before the first update.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl._util.files import append_line, write_atomically
from agentrl.rollout.play.in_flight import in_flight, take_started
from agentrl.train.batch import Row
from agentrl.trajectory.outline import Outline
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

_EVERY_S = 5.0
_DIGITS = ".9g"
"""The format that writes enough significant digits to read back every float32 exactly."""

LookedAt = Sequence[tuple[Row, Sequence[float]]]
"""Rows, each with the trainer's log-probs of its positions before the first update."""


class RunRecords:
    """The records of a run, in its folder. Nothing is written before the folder exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._advantages: dict[int, Row] = {}
        self._log_probs: dict[int, tuple[Row, Sequence[float]]] = {}
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    # Steps

    def learned(self, rows: Iterable[Row], looked_at: LookedAt) -> None:
        """Store the trained rows until `write_step`. A row belongs to the segment with the same tokens object."""
        self._advantages = {id(row.tokens): row for row in rows}
        self._log_probs = {id(row.tokens): (row, log_probs) for row, log_probs in looked_at}

    def write_step(
        self, name: str, step: int, groups: Sequence[Sequence[Trajectory]], whole: int
    ) -> Sequence[Sequence[Trajectory]]:
        """Write the whole trajectories of `whole` groups, and the index of the episodes of all groups. Returns the
        groups that are written whole."""
        lines, index, offset = list[str](), list[str](), 0
        stored = _telling(groups, whole)
        for number, group in enumerate(groups):
            for member, trajectory in enumerate(group):
                about: dict[str, JSON] = {}
                training = self._training(trajectory, step, number, member, tokens=number in stored)
                if number in stored:
                    data = _compact({**trajectory.to_json(), "training": training})
                    line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
                    about = {"offset": offset, "length": len(line.encode())}
                    lines.append(f"{line}\n")
                    offset += about["length"] + 1
                about = {**Outline.of(trajectory, training).to_json(), **about}
                index.append(json.dumps(about, ensure_ascii=False, separators=(",", ":")) + "\n")
        (self.path / "index").mkdir(exist_ok=True)
        write_atomically(self.path / "trajectories" / f"{name}.jsonl", "".join(lines))
        write_atomically(self.path / "index" / f"{name}.jsonl", "".join(index))
        self._advantages, self._log_probs = {}, {}
        return [groups[number] for number in stored]

    def _training(self, trajectory: Trajectory, step: int, group: int, member: int, *, tokens: bool) -> dict[str, JSON]:
        segments = trajectory.segments
        place = {
            "step": step,
            "group": group,
            "member": member,
            "started": take_started(trajectory.session_id),
            "advantages": [self._turn_advantages(segment) for segment in segments],
        }
        if not tokens:
            return place
        log_probs = [self._trainer_log_probs(segment) for segment in segments]
        engine = [_sampled(segment) for segment in segments]
        gaps = [
            abs(sampled - trained)
            for of_engine, of_trainer in zip(engine, log_probs, strict=True)
            for sampled, trained in zip(of_engine, of_trainer, strict=False)
            if trained is not None
        ]
        return {**place, "log_probs": log_probs, "gap": float(f"{max(gaps):.4g}") if gaps else None}

    def _turn_advantages(self, segment: Segment) -> list[float | None]:
        """The advantage of each turn of a segment; a list of a single value if all are equal. [0.0] if the group taught
        nothing and was not read; empty without trained tokens."""
        row = self._advantages.get(id(segment.ids))
        if row is None:
            return [0.0] if segment.ledger.trained else []
        weights = dict(zip(row.positions, row.weights, strict=True))
        advantages: list[float | None] = [None] * len(segment.turns)
        for span in segment.spans:
            if span.trained and advantages[span.turn] is None:
                advantages[span.turn] = float(f"{weights[segment.prompt_length + span.start]:.6g}")
        distinct = {value for value in advantages if value is not None}
        return list(distinct) if len(distinct) == 1 else advantages

    def _trainer_log_probs(self, segment: Segment) -> list[float | None]:
        """The trainer's log-prob of each sampled token; None for tokens that the trainer did not read. Empty if the
        trainer read no token of the segment."""
        row, log_probs = self._log_probs.get(id(segment.ids), (None, ()))
        if row is None:
            return []
        by_position = dict(zip(row.positions, log_probs, strict=True))
        first = segment.prompt_length
        sampled = (first + i for span in segment.spans if span.kind == "sampled" for i in range(span.start, span.stop))
        return [None if (value := by_position.get(i)) is None else float(format(value, _DIGITS)) for i in sampled]

    # Lines

    def event(self, kind: str, message: str, step: int, **figures: JSON) -> None:
        """Append a warning to events.jsonl, with figures."""
        self._append(
            "events", {"step": step, "kind": kind, "message": message, "time": round(time.time(), 1), **figures}
        )

    def demonstrations(self, episodes: int, lost: int) -> None:
        """Append the number of recorded demonstrations, and of those without a reward, to events.jsonl."""
        if lost:
            message = f"{lost:,} of {episodes:,} demonstrations have a reward of 0 or less, and are imitated, too"
            self.event("demonstrations", message, 0, demonstrations={"episodes": episodes, "lost": lost})

    def imitated(self, step: int, loss: float) -> None:
        """Append the loss of a step of imitation to imitation.jsonl."""
        self._append("imitation", {"step": step, "loss": loss})

    def _append(self, name: str, line: Mapping[str, JSON]) -> None:
        if self.path.is_dir():
            append_line(self.path / f"{name}.jsonl", json.dumps(line, ensure_ascii=False))

    def rewind(self, step: int, warm_steps: int) -> None:
        """Remove the records of all steps after `step`. These steps will be played again."""
        for file in (self.path / "index").glob("step_*.jsonl"):
            if file.stem[5:].isdecimal() and int(file.stem[5:]) > step:
                file.unlink()
        for name, last in (("events", step), ("imitation", warm_steps)):
            file = self.path / f"{name}.jsonl"
            if file.is_file():
                lines = [line for line in file.read_text(encoding="utf-8").splitlines() if _step_in(line) <= last]
                write_atomically(file, "".join(f"{line}\n" for line in lines))

    # In flight

    def begin(self, path: Path) -> Callable[[], None]:
        """Write the running episodes to a file in the folder `path` every few seconds. Returns the function that stops
        the writing."""
        self.path = path
        self._watcher = threading.Thread(target=self._watch, name="agentrl-records", daemon=True)
        self._watcher.start()
        return self._close

    def _close(self) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
            (self.path / "inflight.json").unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with suppress(OSError):  # a disk that is full for a while; the trainer reports it
                self.write_in_flight()

    def write_in_flight(self) -> None:
        episodes: list[Any] = [flight.to_json() for flight in in_flight().values()]
        text = json.dumps({"written": time.time(), "episodes": episodes}, ensure_ascii=False)
        write_atomically(self.path / "inflight.json", text)


def _telling(groups: Sequence[Sequence[Trajectory]], most: int) -> Sequence[int]:
    """The numbers of the groups to store whole, in order: first groups whose rewards differ, because these are
    trained."""
    equal = [len({trajectory.reward for trajectory in group}) < 2 for group in groups]
    return sorted(sorted(range(len(groups)), key=lambda number: equal[number])[:most])


def _sampled(segment: Segment) -> list[float]:
    log_probs = segment.log_probs
    return [x for span in segment.spans if span.kind == "sampled" for x in log_probs[span.start : span.stop]]


def _compact(data: dict[str, JSON]) -> dict[str, JSON]:
    """A trajectory as JSON whose log-probs have the digits of a float32."""
    for segment in (*data["earlier"], data):
        segment["log_probs"] = [float(format(x, _DIGITS)) if x else 0.0 for x in segment["log_probs"]]
    return data


def _step_in(line: str) -> float:
    """The step of a line of JSON. An incomplete line counts as later than all steps, and is thus removed."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
