"""Finished episodes in a file, so that an interrupted command can resume. A row is added when an episode finishes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import typer

from agentrl._util.content import content
from agentrl._util.files import append_line, is_special
from agentrl._util.loading import source_of
from agentrl.cli.episodes import write_trajectories
from agentrl.errors import ConfigError, LedgerError
from agentrl.plain import to_json_lossy
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Task

Place: TypeAlias = tuple[str, int]
"""Identifies an episode or a trajectory: the task's key, and the number of the sample of this task (from 0)."""

_KEY = "played"
"""Key of `Trajectory.info`. The value is a mapping: the settings, the task and the sample of the row."""
_SOURCE = "source"
"""Key of that mapping. The value is a digest of the file that defines the Env."""


@dataclass(slots=True)
class Results:
    """The finished episodes of `tasks`. With a `file`, each episode is written immediately after its end.

    `about` has the settings that all rows of a file share: the Env, the model, the limits.
    """

    tasks: Sequence[Task]
    about: Mapping[str, JSON]
    file: Path | None = None
    seats: int = 1
    """The number of trajectories of an episode. With 2 seats, sample 0 has the trajectories 0 and 1, sample 1 has 2 and
    3."""
    done: dict[Place, Trajectory] = field(default_factory=dict)
    resumed: str = ""
    """A sentence on the episodes that were read from the file."""
    keys: Sequence[str] = ()
    """The key of each task, in the order of `tasks`."""
    code: type | None = None
    """The Env's class. A row records a digest of the class's source file, so that a change of the file is noticed."""
    warning: str = ""
    _source: tuple[str, str] = field(init=False)
    """The source file of `code`, and the digest of this file at the command's start. Both are empty without a file."""

    def __post_init__(self) -> None:
        self._source = source_of(self.code)
        if self.file is not None and is_special(self.file):  # such as /dev/stdout: there is nothing to resume
            self.file = None
        self.keys = _keys(self.tasks)
        self.about = to_json_lossy(self.about)

    def load(self) -> None:
        """Read the episodes in the file. A row that a kill cut off is dropped; failed episodes are played again.

        Raises ConfigError for rows of a different command, and for a file of a different kind.
        """
        if self.file is None or not self.file.exists():
            return
        lines = _lines(self.file)
        torn = failed = 0
        for number, line in enumerate(lines, 1):
            try:
                trajectory = Trajectory.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, LedgerError) as exc:
                if number == len(lines):
                    torn = 1
                    continue
                raise ConfigError(f"--out {self.file}:{number} is not a result ({exc}); name another file") from exc
            place = self._place(trajectory, number)
            if trajectory.is_valid:
                self.done[place] = trajectory
            else:
                failed += 1
        write_trajectories(self.file, [*self.done.values()])
        self.resumed = f"{len(self.done)} finished" + (", 1 torn row dropped" if torn else "")
        self.resumed += f", {failed} that failed are played again" if failed else ""
        self.warning = self._changed()

    def load_same(self) -> None:
        """Read the episodes that the same command has left. Episodes of a different command are removed, as episodes
        of a local model are cheap to repeat.

        Raises ConfigError if an API model has played these episodes, as they cost money.
        """
        try:
            self.load()
        except ConfigError as exc:
            assert self.file is not None
            if any('"api": ' in line for line in _lines(self.file)):
                raise
            self.done.clear()
            self.file.unlink()
            reason = str(exc).removeprefix(f"--out {self.file}").removesuffix("; name another file").strip()
            self.resumed, self.warning = "", f"{self.file} was left by another command and is replaced: it {reason}"

    def tell(self) -> None:
        """Print the content of the file on stderr."""
        if self.resumed:
            typer.echo(f"{self.file}: {self.resumed}", err=True)
        if self.warning:
            typer.echo(f"warning: {self.warning}", err=True)

    def _changed(self) -> str:
        """A warning if the Env's file has changed since some of the episodes were played; else empty."""
        file, digest = self._source
        older = sum(_SOURCE in t.info[_KEY] and t.info[_KEY][_SOURCE] != digest for t in self.done.values())
        if not digest or not older:
            return ""
        changed = f"{file} has changed since {older} of these episodes were played"
        return f"{changed}; name another file to keep them apart"

    def missing(self, samples: int) -> list[tuple[Task, Place]]:
        """The episodes still to be played, sorted by sample number, then by task: first sample 0 of all tasks."""
        episodes = [(task, (key, n)) for n in range(samples) for task, key in zip(self.tasks, self.keys, strict=True)]
        return [
            (task, place_of_task)
            for task, place_of_task in episodes
            if not all(place in self.done for place in self.places(place_of_task))
        ]

    def places(self, episode: Place) -> list[Place]:
        """The places of an episode's trajectories: a place for each seat."""
        key, n = episode
        return [(key, n * self.seats + i) for i in range(self.seats)]

    def add(self, trajectory: Trajectory, place: Place) -> None:
        """Remember a finished episode, and append it to the file."""
        source = {_SOURCE: self._source[1]} if self.code is not None else {}
        trajectory.info[_KEY] = {"task": place[0], "sample": place[1], **self.about, **source}
        self.done[place] = trajectory
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.file, json.dumps(trajectory.to_json()))

    def groups(self, samples: int) -> list[list[Trajectory]]:
        """For each task, in the order of `tasks`: its finished episodes, sorted by sample number."""
        numbers = range(samples * self.seats)
        return [[self.done[key, n] for n in numbers if (key, n) in self.done] for key in self.keys]

    def finish(self, out: Path | None, episodes: Sequence[Trajectory]) -> None:
        """Write the episodes to `out`, and remove `file`, which a resumed command would read."""
        if out is not None:
            write_trajectories(out, episodes)
            if self.file is not None:
                self.file.unlink(missing_ok=True)

    def by_place(self, samples: int) -> dict[tuple[int, int], Trajectory]:
        """(index of the task, sample number) -> the finished episode."""
        places = [(place, n) for place in range(len(self.keys)) for n in range(samples * self.seats)]
        return {
            position: self.done[key, position[1]]
            for position in places
            if ((key := self.keys[position[0]]), position[1]) in self.done
        }

    def in_order(self) -> list[Trajectory]:
        """The finished episodes, sorted by task, then by sample number."""
        numbers = {key: number for number, key in enumerate(self.keys)}
        places = sorted(self.done, key=lambda place: (numbers.get(place[0], len(numbers)), place[1]))
        return [self.done[place] for place in places]

    def _place(self, trajectory: Trajectory, number: int) -> Place:
        """The place that a row records. Raises ConfigError if a different command wrote the row."""
        where, stored = f"--out {self.file}", trajectory.info.get(_KEY)
        if not isinstance(stored, Mapping):
            raise ConfigError(f"{where}:{number} is a trajectory of another command; name another file")
        for name, value in self.about.items():
            if stored.get(name) != value:
                was, now = _difference(stored.get(name), value, f"{name}.")
                raise ConfigError(f"{where} holds results of {was}, not {now}; name another file")
        if stored["task"] not in self.keys:
            task = trajectory.task.id
            raise ConfigError(f"{where} holds an episode of task {task!r}, which is not among these; name another file")
        return stored["task"], stored["sample"]


def unfinished(out: Path | None) -> Path | None:
    """The file of episodes until all are played. None if the command cannot resume, as `out` is None or a device."""
    return None if out is None or is_special(out) else out.with_name(f"{out.name}.unfinished")


def how_to_resume(out: Path | None) -> str:
    """The message of an interrupted command whose episodes cost nothing."""
    file = unfinished(out)
    if file is None or not file.exists():
        return "nothing was written; run the command again"
    return f"finished episodes are in {file}; the same command resumes with the rest"


def _lines(file: Path) -> list[str]:
    """The lines of a file that are not empty. Raises ConfigError for an unreadable file."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"--out {file}: {exc.strerror}; name another file") from exc
    return [line for line in text.split("\n") if line.strip()]


def _difference(was: JSON, now: JSON, path: str) -> tuple[str, str]:
    """Two values as short texts. Of two mappings, only the values of the first key that differs."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        key = next(key for key in (*now, *was) if was.get(key) != now.get(key))
        return _difference(was.get(key), now.get(key), f"{path}{key}.")
    return f"{path[:-1]}={was!r:.60}", f"{now!r:.60}"


def _keys(tasks: Sequence[Task]) -> list[str]:
    """A key for each task: a digest of the task's content, and a number that tells equal tasks apart."""
    seen: Counter[str] = Counter()
    keys = []
    for task in tasks:
        digest = hashlib.sha256(content(task).encode()).hexdigest()[:12]
        seen[digest] += 1
        keys.append(f"{digest}-{seen[digest]}")
    return keys
