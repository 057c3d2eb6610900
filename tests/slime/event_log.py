"""What Envs of these tests record, and what they wait for, where workers play them, too."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path


def _shared_file(variable: str) -> Path:
    """A file that this process names, and that workers find by the environment they inherit. It does not exist yet."""
    if named := os.environ.get(variable, ""):
        return Path(named)
    file = Path(tempfile.gettempdir(), f"{variable.lower()}-{os.getpid()}")
    os.environ[variable] = str(file)
    atexit.register(file.unlink, missing_ok=True)
    return file


class EventLog(Sequence):
    """A list of lines that workers write to, too."""

    def __init__(self, variable: str) -> None:
        self._file = _shared_file(variable)

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def __getitem__(self, index):
        return self._lines()[index]

    def __len__(self) -> int:
        return len(self._lines())

    def __eq__(self, other: object) -> bool:
        return self._lines() == other

    def __repr__(self) -> str:
        return repr(self._lines())

    __hash__ = None

    def append(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)


class Gate:
    """An event that workers see, too."""

    def __init__(self, variable: str) -> None:
        self._file = _shared_file(variable)

    def is_set(self) -> bool:
        return self._file.exists()

    def set(self) -> None:
        self._file.touch()

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)
