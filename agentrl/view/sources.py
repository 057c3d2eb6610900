"""Inputs of the viewer: a run's folder, a folder of files, or a single file. Each lists the names of its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import from_json

from agentrl.errors import ConfigError
from agentrl.monitor.run_figures import RunFigures
from agentrl.monitor.verdicts import verdicts
from agentrl.types import JSON
from agentrl.view.files import REMEDY, EpisodeFile, Lines, open_file

_LIVE_S = 120.0
"""A run without a summary counts as running if it wrote a file within this many seconds."""
_FEW_STEPS = 10
"""The number of steps before which a run that goes on gets no verdict."""
_SUFFIXES = (".jsonl", ".pt", ".json")
_GROWING = ("metrics", "evaluations", "events", "imitation")
INDEX = "index"
"""The name of a folder in a run. For each file of `trajectories`, it has a file with a summary of each episode."""


class Source:
    """A file, or a folder with files, of episodes."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, EpisodeFile] = {}
        self._names = frozenset[str]()
        """The names of the last listing."""

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    def listing(self) -> list[str]:
        """The names of the files, in order. Raises ConfigError."""
        return [self.path.name]

    def file(self, name: str) -> EpisodeFile:
        """A listed file. Raises ConfigError for any other name."""
        if name not in self._open:
            if name not in self._names:
                self._names = frozenset(self.listing())
            if name not in self._names:
                raise ConfigError(f"{self.name} holds no file {name!r}")
            self._open[name] = self._opened(name)
        return self._open[name]

    def _opened(self, name: str) -> EpisodeFile:
        return open_file(self.path)

    def state(self) -> dict[str, JSON]:
        """The data on the source, without its episodes, as JSON."""
        return {"kind": self.kind, "name": self.name, "files": self.listing(), "live": False}

    @property
    def model(self) -> str | None:
        """The model whose tokenizer decodes the tokens; None if unknown."""
        return None


class Folder(Source):
    """A folder of which every readable file is listed: dumps of slime, results of verifiers, or trajectories."""

    kind = "folder"

    def listing(self) -> list[str]:
        names = sorted(path.name for path in self.path.iterdir() if path.suffix in _SUFFIXES and path.is_file())
        if not names:
            raise ConfigError(f"{self.path}: no episodes in this folder; {REMEDY}")
        return names

    def _opened(self, name: str) -> EpisodeFile:
        return open_file(self.path / name)


class Run(Source):
    """The folder of a run. The constructor reads only the small files."""

    kind = "run"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines = {name: _GrowingLines(path / f"{name}.jsonl") for name in _GROWING}
        self._verdicts: tuple[Sequence[int], list[JSON]] = ((), [])
        """The verdicts, after the numbers of lines from which they were read."""

    def listing(self) -> list[str]:
        names = {file.stem for folder in ("trajectories", INDEX) for file in (self.path / folder).glob("*.jsonl")}
        return sorted(names)

    def _opened(self, name: str) -> EpisodeFile:
        return open_file(self.path / "trajectories" / f"{name}.jsonl", self.path / INDEX / f"{name}.jsonl")

    def file(self, name: str) -> EpisodeFile:
        episodes = super().file(name)
        if not hasattr(episodes, "index") and (self.path / INDEX / f"{name}.jsonl").is_file():
            del self._open[name]  # a file of this name has got its index
            return super().file(name)
        return episodes

    @property
    def config(self) -> dict[str, Any]:
        try:
            settings = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return settings if isinstance(settings, dict) else {}

    @property
    def model(self) -> str | None:
        """The newest folder of the run with a tokenizer, or the name in the run's configuration."""
        folders = [self.path / "model", *sorted((self.path / "checkpoints").glob("step_*"), reverse=True)]
        newest = next((str(folder) for folder in folders if (folder / "tokenizer.json").is_file()), None)
        name = self.config.get("model")
        return newest or (name if isinstance(name, str) else None)

    def metrics(self) -> Sequence[Mapping[str, JSON]]:
        return self._lines["metrics"].read()

    def evaluations(self) -> Sequence[Mapping[str, JSON]]:
        return self._lines["evaluations"].read()

    @property
    def fingerprint(self) -> Mapping[str, JSON]:
        """The digests of the Env's code, the tasks and the configuration; empty if an older version wrote the run."""
        digests = _json(self.path / "fingerprint.json")
        return digests if isinstance(digests, dict) else {}

    def verdicts(self) -> list[JSON]:
        """Why the run does not learn, so far: see agentrl.monitor.verdicts. Empty in the first steps of a run that goes
        on."""
        counts = [len(self._lines[name].read()) for name in ("metrics", "evaluations")]
        if counts[0] < _FEW_STEPS and not (self.path / "summary.json").is_file():
            return []
        if counts != self._verdicts[0]:
            self._verdicts = counts, [verdict.to_json() for verdict in verdicts(RunFigures.read(self.path))]
        return self._verdicts[1]

    def state(self) -> dict[str, JSON]:
        summary = _json(self.path / "summary.json")
        wrote = max(_changed(self.path / name) for name in ("metrics.jsonl", "inflight.json", "config.yaml"))
        return {
            "kind": self.kind,
            "name": self.name,
            "files": self.listing(),
            "live": summary is None and time.time() - wrote < _LIVE_S,
            "wrote": wrote,
            "config": json.loads(json.dumps(self.config, default=str)),
            "summary": summary,
            **{name: list(lines.read()) for name, lines in self._lines.items()},
            "verdicts": self.verdicts(),
            "best": Path(os.path.realpath(self.path / "best")).name,
            "inflight": _json(self.path / "inflight.json"),
        }


class _GrowingLines:
    """The lines of a small file that grows."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self._values: list[Mapping[str, JSON]] = []

    def read(self) -> Sequence[Mapping[str, JSON]]:
        if not self._lines.path.is_file():
            return []
        lines = self._lines.refresh()
        if lines < len(self._values):
            self._values.clear()
        for number in range(len(self._values), lines):
            value = self._lines.value(number)
            self._values.append(value if isinstance(value, dict) else {})
        return self._values


def open_source(path: Path) -> Source:
    """The source at a path. Raises ConfigError."""
    if not path.is_dir():
        open_file(path)
        return Source(path)
    if path.name == "best" and (path.parent / "config.yaml").is_file():
        path = path.parent
    if (path / "config.yaml").is_file() or (path / "trajectories").is_dir():
        return Run(path)
    folder = Folder(path)
    folder.listing()
    return folder


def _json(path: Path) -> JSON:
    try:
        return from_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
