"""The progress of a run: a bar in a terminal, or else a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

_LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Position:
    """The number of steps that a run has done. Saved with every checkpoint."""

    step: int = 0
    started: bool = False
    """Whether the warm start, if any, is over."""
    warm_steps: int = 0
    returned: bool = False
    """Whether the run has returned to its best weights."""
    seconds: float = 0.0
    """Seconds of the run's earlier processes, for a run folder without a bill."""

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The position in the state of a checkpoint. Older versions stored evaluations there, too."""
        return cls(**{key: state[key] for key in cls.__slots__ if key in state})


class Progress:
    """The progress of a phase: `with Progress(console, "rl", 100) as progress: progress.show(1, reward=0.2)`."""

    def __init__(self, console: Console, phase: str, total: int, *, done: int = 0) -> None:
        self._console, self._phase, self._total = console, phase, total
        self._began = self._shown_at = time.monotonic()
        self._begun_at = done
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(phase, total=total, completed=done, values="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, done: int, **values: float) -> None:
        """Show that `done` steps of the total are done. `values` are shown beside, by name."""
        text = "  ".join(
            f"{name} {value:.3g}" if value < 1000 else f"{name} {value:,.0f}" for name, value in values.items()
        )
        self._bar.update(self._task, completed=done, values=text)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._shown_at >= _LINE_EVERY_S or done == self._total):
            self._shown_at = now
            seconds = (now - self._began) / max(done - self._begun_at, 1) * (self._total - done)
            self._console.print(f"{self._phase} {done}/{self._total}  {text}  {seconds:.0f} s left", highlight=False)

    def note(self, text: str) -> None:
        """Print a permanent line above the bar."""
        self._bar.console.print(text, highlight=False, markup=False)
