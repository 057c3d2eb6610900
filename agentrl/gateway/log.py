"""What happened in a session, line by line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.plain import shown
from agentrl.types import JSON

_FOLDER = "AGENTRL_SESSION_LOGS"


class SessionLog:
    """The lines of one session, oldest first. They are only added to.

    Where the environment variable AGENTRL_SESSION_LOGS names a folder, each line is also written to a file there as it
    comes, with the tokens: from it a session can be made again whose process is gone.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, JSON]] = []
        self._folder = os.environ.get(_FOLDER)
        self._path: Path | None = None
        self._waiting: list[str] = []

    def note(self, event: str, more: Callable[[], Mapping[str, JSON]] | None = None, /, **given: JSON) -> None:
        """Add a line. `more` makes what is only written to the file."""
        line = {"at": round(time.time(), 3), "event": event, **given}
        self.lines.append(line)
        if self._folder:
            full = {**line, **(more() if more else {})}
            self._waiting.append(json.dumps(shown(full), ensure_ascii=False) + "\n")
            self._flush()

    def name(self, session_id: str) -> None:
        """The session is known by this name: its file can be written."""
        if self._folder:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            self._path = Path(self._folder) / f"{session_id}.jsonl"
            self._flush()

    def _flush(self) -> None:
        if self._path is not None and self._waiting:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(self._waiting)
            self._waiting.clear()
