"""The defects that were confirmed by hand. Each has a reproduction that imports the environment's package, not
agentrl."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("confirmed.yaml")
_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A confirmed defect of one environment, or of several that share the cause."""

    id: str
    suite: str
    kinds: Sequence[str]
    """The findings of the probe that the defect explains."""
    environments: Sequence[str] = ()
    """Empty: each environment of the suite with such a finding."""
    what: str
    fix: str
    script: str
    shows: str
    """The script's output. For a script that raises, the last line of the traceback begins with this text."""
    minor: bool = False
    """Whether only an unlikely text of a model shows the defect."""

    def explains(self, suite: str, name: str, kind: str) -> bool:
        """Whether the defect is the cause of a finding."""
        return suite == self.suite and kind in self.kinds and (not self.environments or name in self.environments)


@cache
def _file() -> Mapping[str, Any]:
    read: Mapping[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return read


def defects() -> list[Defect]:
    return [Defect(**row) for row in _file()["defects"]]


def listed(kind: str) -> list[tuple[str, str, str, str]]:
    """Findings, either true ones `by_design` or `false_alarms`: suite, environment, kind, and the reason."""
    return [(row["suite"], row["environment"], row["kind"], row["why"]) for row in _file()[kind]]


def held_out() -> tuple[list[str], list[tuple[str, int, int]]]:
    """The suites that the rules had not seen, and for each first sight: what was played, how many, false alarms."""
    row = _file()["held_out"]
    return row["suites"], [(time["what"], time["played"], time["alarms"]) for time in row["times"]]


def confirm(python_of: Callable[[str], Path]) -> int:
    """Run each reproduction. Returns 1 if a reproduction no longer shows its defect, else 0."""
    gone = 0
    for defect in defects():
        shown = run(defect, python_of(defect.suite))
        is_shown = shown == defect.shows.strip() or (shown.startswith(defect.shows.strip()) and "Error" in defect.shows)
        gone += not is_shown
        print(f"{'shown' if is_shown else 'NOT SHOWN'}  {defect.id}", flush=True)
        if not is_shown:
            print(f"  expected: {defect.shows.strip()}\n  but it was: {shown}", flush=True)
    return int(gone > 0)


def run(defect: Defect, python: Path) -> str:
    """The output of a reproduction; the last line of stderr if the reproduction raises."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-W", "ignore", "-c", defect.script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return lines[-1] if lines else ""
