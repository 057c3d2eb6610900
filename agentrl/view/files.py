"""Files of episodes, read piece by piece: memory holds the offsets of lines, and the last few episodes.

Files grow while the page shows them. An incomplete line waits; a file that shrank is read anew.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from pydantic_core import from_json

from agentrl._util.config_errors import check_file
from agentrl.errors import ConfigError
from agentrl.types import JSON
from agentrl.view.model import EpisodeRecord
from agentrl.view.readers import dumps, is_event, read_log, read_record

_BLOCK = 1 << 20
_LINES = 1_000
"""The number of lines of an index that are parsed at once."""
_KEPT = 4
"""The most episodes that stay in memory."""
REMEDY = "give a run's folder, or a file of trajectories, chat, traces, ATIF or slime's dumps"


class NotKeptError(ConfigError):
    """The run stored only the summary (`Outline`) of this episode, not the tokens."""


class EpisodeFile(Protocol):
    """A file whose episodes are read by number, from 0. All methods raise ConfigError."""

    path: Path

    def refresh(self) -> int:
        """Look for new episodes; return their number."""

    def outline(self, number: int) -> Mapping[str, JSON]: ...

    def episode(self, number: int) -> EpisodeRecord: ...


class Lines:
    """The offsets of the lines of a file. A byte order mark and empty lines are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts, self.stops = array("q"), array("q")
        self._end = 0
        self._identity: tuple[int, int] | None = None

    def refresh(self) -> int:
        """Index the added lines; return their number. Raises ConfigError."""
        try:
            stat = self.path.stat()
            if (stat.st_dev, stat.st_ino) != self._identity or stat.st_size < self._end:
                self.starts, self.stops, self._end = array("q"), array("q"), 0
                self._identity = (stat.st_dev, stat.st_ino)
            if stat.st_size > self._end:
                self._scan()
        except OSError as exc:
            raise ConfigError(f"{self.path}: {exc.strerror}; {REMEDY}") from exc
        return len(self.starts)

    def _scan(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._end)
            offset = begin = self._end
            while block := file.read(_BLOCK):
                place = block.find(b"\n")
                while place >= 0:
                    self._add(begin, offset + place)
                    begin = offset + place + 1
                    place = block.find(b"\n", place + 1)
                offset += len(block)
        self._end = begin
        if begin < offset and self._whole(begin, offset):
            self._add(begin, offset)
            self._end = offset

    def _add(self, start: int, stop: int) -> None:
        if stop > start:
            self.starts.append(start)
            self.stops.append(stop)

    def _whole(self, start: int, stop: int) -> bool:
        """Whether a last line without a line break is complete JSON: a file need not end with a line break."""
        if stop - start > 1 << 26:
            return False
        try:
            from_json(self.read(start, stop))
        except ValueError:
            return False
        return True

    def read(self, start: int, stop: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start).removeprefix(b"\xef\xbb\xbf")

    def value(self, number: int) -> JSON:
        """The JSON value of a line. Raises ConfigError."""
        try:
            return from_json(self.read(self.starts[number], self.stops[number]))
        except ValueError as exc:
            raise ConfigError(f"{self.path}:{number + 1}: not JSON ({exc}); write one object on one line") from exc


class JsonLines:
    """A file with an episode on each line, in any format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = Lines(path)
        self._log: EpisodeRecord | None = None
        self._outlines: dict[int, Mapping[str, JSON]] = {}
        self._cache = Recent()

    def refresh(self) -> int:
        before = len(self.lines.starts)
        lines = self.lines.refresh()
        if lines < before:
            self._outlines.clear()
            self._cache.clear()
        if lines and (before == 0 or self._log is not None) and is_event(self.lines.value(0)):
            self._log = read_log([self._text(i) for i in range(lines)], str(self.path))
        return lines if self._log is None else 1

    def _text(self, number: int) -> str:
        return self.lines.read(self.lines.starts[number], self.lines.stops[number]).decode("utf-8", "replace")

    def outline(self, number: int) -> Mapping[str, JSON]:
        if number not in self._outlines:
            self._outlines[number] = self._read(number).outline.to_json()
        return self._outlines[number]

    def known(self, number: int) -> bool:
        """Whether the episode's summary is in memory."""
        return number in self._outlines

    def episode(self, number: int) -> EpisodeRecord:
        return self._cache.get(number, partial(self._read, number))

    def _read(self, number: int) -> EpisodeRecord:
        if self._log is not None:
            return self._log
        return read_record(self.lines.value(number), f"{self.path}:{number + 1}")


class Indexed:
    """A run's file of episodes, with the trainer's index of summaries. If a run did not store an episode's tokens, its
    summary has the key `unkept`."""

    def __init__(self, path: Path, index: Path) -> None:
        self.path = path
        self.index = Lines(index)
        self._cache = Recent()

    def refresh(self) -> int:
        return self.index.refresh()

    def outline(self, number: int) -> Mapping[str, JSON]:
        return _marked(self.index.value(number))

    def outlines(self) -> Iterator[Mapping[str, JSON]]:
        """The summaries of all episodes, read in a single pass."""
        with self.index.path.open("rb") as file:
            for _ in range(0, len(self.index.starts), _LINES):
                lines = [line for line in islice(file, _LINES) if line.endswith(b"}\n")]
                yield from map(_marked, from_json(b"[" + b",".join(lines) + b"]", cache_strings="keys"))

    def episode(self, number: int) -> EpisodeRecord:
        return self._cache.get(number, partial(self._read, number))

    def _read(self, number: int) -> EpisodeRecord:
        about = self.outline(number)
        if "unkept" in about:
            raise NotKeptError(
                f"{self.path.stem}: the tokens of this episode are not kept; raise keep.groups to keep more"
            )
        try:
            raw = Lines(self.path).read(about["offset"], about["offset"] + about["length"])
            return read_record(from_json(raw), f"{self.path}:{number + 1}")
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{self.path}:{number + 1}: differs from its index ({exc}); delete the index") from exc


def _marked(about: dict[str, JSON]) -> dict[str, JSON]:
    return about if "offset" in about else {**about, "unkept": True}


class Dump:
    """The samples of a dump of slime."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: list[dict[str, JSON]] = []
        self._read_at: float | None = None

    def refresh(self) -> int:
        try:
            changed = self.path.stat().st_mtime
        except OSError as exc:
            raise ConfigError(f"{self.path}: {exc.strerror}; {REMEDY}") from exc
        if changed != self._read_at:
            self._samples = dumps.load(self.path)
            self._read_at = changed
        return len(self._samples)

    def outline(self, number: int) -> Mapping[str, JSON]:
        return self.episode(number).outline.to_json()

    def episode(self, number: int) -> EpisodeRecord:
        return read_record(self._samples[number], f"{self.path}, sample {number}")


class JsonDocument:
    """A file that is a single JSON value: an episode, as Harbor writes trajectory.json, or a list of episodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[JSON] = []
        self._read_at: tuple[int, int] | None = None

    def refresh(self) -> int:
        try:
            about = self.path.stat()
            if (changed := (about.st_mtime_ns, about.st_size)) == self._read_at:
                return len(self._records)
            document = from_json(self.path.read_bytes())
        except OSError as exc:
            raise ConfigError(f"{self.path}: {exc.strerror}; {REMEDY}") from exc
        except ValueError as exc:
            raise ConfigError(f"{self.path}: not JSON ({exc}); {REMEDY}") from exc
        self._records, self._read_at = document if isinstance(document, list) else [document], changed
        return len(self._records)

    def outline(self, number: int) -> Mapping[str, JSON]:
        return self.episode(number).outline.to_json()

    def episode(self, number: int) -> EpisodeRecord:
        return read_record(self._records[number], f"{self.path}, record {number}")


class Recent:
    """A cache of the episodes that were read last."""

    def __init__(self) -> None:
        self._records: OrderedDict[int, EpisodeRecord] = OrderedDict()

    def get(self, number: int, read: partial[EpisodeRecord]) -> EpisodeRecord:
        if number not in self._records:
            self._records[number] = read()
            while len(self._records) > _KEPT:
                self._records.popitem(last=False)
        self._records.move_to_end(number)
        return self._records[number]

    def clear(self) -> None:
        self._records.clear()


def open_file(path: Path, index: Path | None = None) -> EpisodeFile:
    """The EpisodeFile for a path, by the content of the first bytes. Raises ConfigError."""
    if index is not None and index.is_file():
        return Indexed(path, index)
    check_file(path, REMEDY)
    try:
        with path.open("rb") as file:
            head = file.read(2)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}; {REMEDY}") from exc
    if head == b"PK" or path.suffix == ".pt":
        return Dump(path)
    return JsonDocument(path) if path.suffix == ".json" else JsonLines(path)


def outlines(file: EpisodeFile, *, seconds: float | None = None) -> Iterator[tuple[int, Mapping[str, JSON]]]:
    """The number and summary of each episode. With `seconds`, the iteration ends after that time, at the next episode
    whose summary is not in memory."""
    episodes = file.refresh()
    if isinstance(file, Indexed):
        yield from enumerate(file.outlines())
        return
    began = time.monotonic()
    for number in range(episodes):
        late = seconds is not None and time.monotonic() - began > seconds
        if late and not (isinstance(file, JsonLines) and file.known(number)):
            return
        yield number, file.outline(number)
