"""TensorBoard's event files, by tensorboardX: figures by step, a record for each step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFile:
    """A new event file in `folder`. Figures of older files from `step` on are replaced.

    Raises ImportError if tensorboardX is not installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        # SummaryWriter writes in a thread: a full disk would end the thread, and later block the run.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, which have whole seconds.
        self._file = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step, so that TensorBoard sees them at once. Raises OSError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)
        self._file.flush()
