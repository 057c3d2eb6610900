"""The stages of a rehearsal, from events and log: how each ended, after how long, and the cause of a failure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl.rehearse.standins.events import STAGES

JSONObject = dict[str, Any]
SECOND_UPDATE = "second update"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RAY_PREFIX = re.compile(r"^\((?:\S+ )*pid=\d+[^)]*\) ")
_EXCEPTION = re.compile(
    r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Killed|Died)\w*(?:\(\w+\))?: .+"
)
_USAGE = re.compile(r"^\S+\.py: error: .+")
_MOST = 300
"""The most characters of a cause."""


class State(StrEnum):
    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    RUNNING = "running"
    NOT_REACHED = "not reached"


@dataclass(slots=True)
class Stage:
    """A stage of the report."""

    name: str
    state: State = State.NOT_REACHED
    seconds: float | None = None
    """Seconds that the first occurrence took, over all processes."""
    times: int = 0
    """How often the stage ended."""
    cause: str = ""
    """One line."""
    place: str = ""
    """File and line of the log; or of the code where the log does not have the cause."""

    def to_json(self) -> JSONObject:
        return {
            "name": self.name,
            "state": str(self.state),
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "times": self.times,
            "cause": self.cause,
            "place": self.place,
        }


class EventFiles:
    """Reads the event files of a folder as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "events"
        self._offsets: dict[Path, int] = {}

    def new(self) -> list[JSONObject]:
        """The events that were written since the last call, ordered by time."""
        events: list[JSONObject] = []
        for file in sorted(self._folder.glob("*.jsonl")):
            offset = self._offsets.get(file, 0)
            with file.open("rb") as lines:
                lines.seek(offset)
                data = lines.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[file] = offset + len(whole)
            events += filter(None, map(_event, whole.splitlines()))
        return sorted(events, key=lambda event: event["t"])


def _event(line: bytes) -> JSONObject | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and {"t", "pid", "stage", "event"} <= event.keys() else None


@dataclass(slots=True)
class Occurrence:
    """A stage's single occurrence: the processes that run it at the same time."""

    stage: str
    began: float
    rollout: int | None = None
    open: set[int] = field(default_factory=set)
    """Processes that have begun and not ended."""
    ended: float | None = None
    error: JSONObject | None = None


@dataclass(slots=True)
class StageWatch:
    """The stages of a start of slime's program."""

    expected: Sequence[str]
    """The names of the stages that the launch should reach, in order."""
    began: float = field(default_factory=time.time)
    occurrences: list[Occurrence] = field(default_factory=list)
    errors: list[JSONObject] = field(default_factory=list)
    """Events of errors, in order of time."""
    data: list[JSONObject] = field(default_factory=list)
    announced: set[str] = field(default_factory=set)
    """Names of stages that the user was told of."""
    _last: float = field(default_factory=time.time)

    def add(self, events: Iterable[JSONObject]) -> list[Occurrence]:
        """Take in events. Returns the occurrences that have ended with them."""
        ended = []
        for event in events:
            if event["event"] == "data":
                self.data.append(event)
                continue
            self._last = time.time()
            if event["event"] == "begin":
                self._begin(event)
                continue
            if event["event"] == "error":
                self.errors.append(event)
            if (occurrence := self._end(event)) is not None and not occurrence.open:
                occurrence.ended = event["t"]
                ended.append(occurrence)
        return ended

    def _begin(self, event: JSONObject) -> None:
        pid, name = event["pid"], event["stage"]
        latest = next((occurrence for occurrence in reversed(self.occurrences) if occurrence.stage == name), None)
        if latest is None or latest.ended is not None or pid in latest.open:
            latest = Occurrence(name, event["t"], event.get("rollout"))
            self.occurrences.append(latest)
        latest.open.add(pid)

    def _end(self, event: JSONObject) -> Occurrence | None:
        for occurrence in reversed(self.occurrences):
            if occurrence.stage == event["stage"] and event["pid"] in occurrence.open:
                occurrence.open.discard(event["pid"])
                if event["event"] == "error":
                    occurrence.error = occurrence.error or event
                return occurrence
        return None

    @property
    def silent_s(self) -> float:
        """Seconds since a stage began or ended, or since the start."""
        return time.time() - self._last

    def current(self) -> str:
        """The stage that runs, or the stage that should come next."""
        running = [occurrence for occurrence in self.occurrences if occurrence.open and occurrence.ended is None]
        if running:
            return self.name_of(running[-1])
        reached = {self.name_of(occurrence) for occurrence in self.occurrences}
        return next((name for name in self.expected if name not in reached), self.expected[-1])

    def name_of(self, occurrence: Occurrence) -> str:
        """The report's name of an occurrence: every weight update after the first belongs to `second update`."""
        if occurrence.stage != "weights":
            return occurrence.stage
        first = next(occurrence for occurrence in self.occurrences if occurrence.stage == "weights")
        return "weights" if occurrence is first or SECOND_UPDATE not in self.expected else SECOND_UPDATE

    def stages(self) -> list[Stage]:
        """The expected stages, and reached stages that were not expected."""
        names = [*self.expected]
        names += [name for occurrence in self.occurrences if (name := self.name_of(occurrence)) not in names]
        return [self._stage(name) for name in dict.fromkeys(names)]

    def _stage(self, name: str) -> Stage:
        mine = [occurrence for occurrence in self.occurrences if self.name_of(occurrence) == name]
        stage = Stage(name, times=sum(occurrence.ended is not None and occurrence.error is None for occurrence in mine))
        if not mine:
            return stage
        if mine[0].ended is not None:
            stage.seconds = mine[0].ended - mine[0].began
        stage.state = State.OK if all(occurrence.ended is not None for occurrence in mine) else State.RUNNING
        return stage

    def failed(self, how: str, log: Path, *, timed_out: bool = False, limit_s: float = 0.0) -> list[Stage]:
        """The stages of a start that did not end well, with the cause at the stage that failed. `how` tells in words
        how the program ended."""
        stages = self.stages()
        stage_name, cause, place = self._cause(how, log)
        if timed_out:
            stage_name, why = self.current(), f"no end after {limit_s:.0f} s (--timeout)"
            cause, place = (f"{why}; {cause}" if self.errors else why), place if self.errors else ""
        failed = next((stage for stage in stages if stage.name == stage_name), stages[0])
        failed.state = State.TIMED_OUT if timed_out else State.FAILED
        failed.cause, failed.place = cause, place
        for stage in stages:
            if stage.state == State.RUNNING:
                stage.state = State.OK if stage.times else State.NOT_REACHED
        return stages

    def _cause(self, how: str, log: Path) -> tuple[str, str, str]:
        """The stage that failed first, the cause in one line, and its place."""
        lines = log_lines(log)
        if self.errors:
            event = self.errors[0]
            cause = innermost(event.get("error", ""))
            return self._stage_of(event), cause, place_of(cause, lines, log) or event.get("trace", "")
        number, cause = first_exception(lines)
        if not cause:
            number, cause = len(lines), next((line for line in reversed(lines) if line.strip()), "no output")
            cause = f"the program ended {how}: {cause}"
        return self.current(), shortened(cause), f"{log}:{number}"

    def _stage_of(self, event: JSONObject) -> str:
        for occurrence in self.occurrences:
            if occurrence.error is event:
                return self.name_of(occurrence)
        name = event["stage"]
        return str(name if name in self.expected or name in STAGES else self.current())


# ---- causes


def log_lines(log: Path) -> list[str]:
    """The lines of a log without colours and without Ray's prefix of a worker."""
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8", errors="replace")
    return [_RAY_PREFIX.sub("", _ANSI.sub("", line)) for line in text.splitlines()]


def innermost(error: str) -> str:
    """The exception that came first, as one line. Ray's wrapper has it at its end."""
    lines = [_ANSI.sub("", line).strip() for line in error.splitlines() if line.strip()]
    if not lines:
        return "no message"
    if re.match(r"(Ray\w*Error|ActorDiedError)", lines[0]):
        last = max((number for number, line in enumerate(lines) if number and _EXCEPTION.match(line)), default=0)
        return shortened(" ".join(lines[last:]))
    died = "ActorUnavailableError" in lines[0]  # Ray's words tell of a closed connection only
    return shortened(" ".join(["a process of slime died:", *lines] if died else lines))


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST else f"{line[: _MOST - 3]}..."


def place_of(cause: str, lines: Sequence[str], log: Path) -> str:
    """The first line of the log with the beginning of the cause. Empty if there is none."""
    words = cause.split(": ", 1)[-1][:60]
    for number, line in enumerate(lines, 1):
        if words and words in line:
            return f"{log}:{number}"
    return ""


def first_exception(lines: Sequence[str]) -> tuple[int, str]:
    """The number and text of the first line that names an exception after a traceback, or argparse's error. (0, "")
    without one."""
    traced = False
    for number, line in enumerate(lines, 1):
        if line.startswith("Traceback (most recent call last)"):
            traced = True
        elif _USAGE.match(line) or (traced and _EXCEPTION.match(line)):
            is_wrapper = line.startswith("ray.exceptions.RayTaskError")  # the worker's own traceback follows
            if not is_wrapper and not line.startswith("SystemExit"):
                return number, innermost(line)
            traced = is_wrapper
    for number, line in enumerate(lines, 1):
        if _EXCEPTION.match(line):
            return number, innermost(line)
    return 0, ""


def expected_stages(*, evaluates: bool, saves: bool, rollouts: int) -> list[str]:
    """The stages that a launch should reach, in order."""
    left_out = set() if evaluates else {"evaluation"}
    left_out |= set() if saves else {"checkpoint"}
    names = [name for name in STAGES if name not in left_out and name != "evaluation"]
    names += [SECOND_UPDATE] if rollouts else []
    return [*names, *(["evaluation"] if evaluates else [])]


def metrics_of(data: Iterable[Mapping[str, Any]], stage: str) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """The metrics that slime logged in a stage, each with its step."""
    for event in data:
        inner = event.get("data") or {}
        if event["stage"] == stage and isinstance(inner.get("metrics"), dict):
            yield inner.get("step"), inner["metrics"]
