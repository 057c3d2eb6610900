"""The progress of a run: a bar in a terminal, or else a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from agentrl.monitor.by_key import score_of
from agentrl.monitor.earned import rewards_of
from agentrl.rollout.play.evaluate import Evaluation

_LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Position:
    """The number of steps that a run has done, with its evaluations. Saved with every checkpoint."""

    step: int = 0
    started: bool = False
    """Whether the warm start, if any, is over."""
    warm_steps: int = 0
    seconds: float = 0.0
    """Seconds of the run's earlier processes, for a run folder without a bill."""
    evals: dict[str, float | None] = field(default_factory=dict)
    """Name of an evaluation -> the mean held-out reward; None if no episode got a reward."""
    eval_failed: dict[str, int] = field(default_factory=dict)
    """Name of an evaluation -> the number of its failed episodes."""
    eval_intervals: dict[str, Sequence[float] | None] = field(default_factory=dict)
    """Name of an evaluation -> the 95 % interval of the mean held-out reward, by resampling the tasks."""
    eval_tasks: int = 0
    """The number of held-out tasks that got a reward in the last evaluation."""

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Store the result of an evaluation."""
        score = score_of(rewards_of(evaluation.trajectories), evaluation.metrics.failed_episodes)
        self.evals[name], self.eval_failed[name], self.eval_tasks = score.mean, score.failed, score.tasks
        self.eval_intervals[name] = None if score.low is None or score.high is None else (score.low, score.high)


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
