"""The log of a session, a list of JSON lines."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.types import JSON

log = logging.getLogger("agentrl")

_FOLDER = "AGENTRL_SESSION_LOGS"


class SessionLog:
    """The lines of one session, oldest first. Lines are only added.

    If the environment variable AGENTRL_SESSION_LOGS names a folder, each line is also written to a file there, with the
    tokens. The file is enough to rebuild a session after its process has ended.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, JSON]] = []
        self._folder = os.environ.get(_FOLDER)
        self._path: Path | None = None
        self._waiting: list[str] = []

    def note(self, event: str, more: Callable[[], Mapping[str, JSON]] | None = None, /, **fields: JSON) -> None:
        """Add a line. `more` returns additional fields, which are only written to the file."""
        line = {"at": round(time.time(), 3), "event": event, **fields}
        self.lines.append(line)
        if self._folder:
            full = {**line, **(more() if more else {})}
            self._waiting.append(json.dumps(full, default=str) + "\n")
            self._flush()

    def name(self, session_id: str) -> None:
        """Set the session's name, which is needed for the name of the file. Afterwards the file is written."""
        if self._folder:
            self._path = Path(self._folder) / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', session_id)}.jsonl"
            self._flush()

    def _flush(self) -> None:
        """Write the waiting lines to the file. After an error, such as a full disk, the session goes on without the
        file."""
        if self._path is None or not self._waiting:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(self._waiting)
        except OSError as exc:
            log.warning("%s=%s: %s; the session's log ends here", _FOLDER, self._folder, exc.strerror)
            self._folder = None
        self._waiting.clear()
