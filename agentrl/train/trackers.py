"""Trackers of a run's metrics: TensorBoard files by tensorboardX, and W&B if the configuration names a project."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from agentrl._util.files import write_atomically
from agentrl.errors import ConfigError
from agentrl.train.config import TrainConfig
from agentrl.train.report import BOARD

_WANDB_ID = "wandb_id"
"""The file in the run folder with the W&B id of the run. A resumed run has the same id, so W&B draws a single curve."""
_CONNECT_S = 30

Warn: TypeAlias = Callable[[str], None]


def check_wandb(config: TrainConfig) -> None:
    """Raises ConfigError if the configuration names a project of W&B, and wandb is not installed."""
    if config.wandb is None:
        return
    try:
        _import_wandb()
    except ImportError as exc:
        raise ConfigError(
            f"wandb: it is not installed ({exc}); in agentrl's folder: pip install -e '.[wandb]'"
        ) from exc


class Trackers:
    """Writes the metrics of every step. If W&B cannot be reached, a warning is printed, and the run continues."""

    def __init__(self, config: TrainConfig, folder: Path, step: int, warn: Warn) -> None:
        """`step` is the last finished step. The metrics of later steps, from before a kill, are replaced."""
        self._warn = warn
        self._board: EventFile | None = None
        with suppress(ImportError):  # the run's last lines tell that tensorboardX is not installed
            self._board = EventFile(folder / BOARD, step + 1)
        self._wandb: Any = None
        if config.wandb is not None:
            with self._or_without_wandb():
                self._wandb = _open_wandb(config, folder)

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers among the metrics of a step."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        if self._board is not None:
            self._board.add(step, numbers)
        if self._wandb is not None:
            with self._or_without_wandb():
                # W&B ignores a step that it already has. A step that is repeated after a kill has the same figures.
                self._wandb.log(numbers, step=step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            with self._or_without_wandb():
                self._wandb.finish()

    @contextmanager
    def _or_without_wandb(self) -> Iterator[None]:
        """The context of calls to W&B, which depends on network, a service process and disk. Any error turns W&B off,
        with a single warning."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as exc:  # noqa: BLE001 - whatever happens to W&B must not end a run
            self._wandb = None
            self._warn(f"W&B: {' '.join(f'{type(exc).__name__}: {exc}'.split()):.300}; continuing without it")


def _open_wandb(config: TrainConfig, folder: Path) -> Any:
    file = folder / _WANDB_ID
    if not file.exists():
        write_atomically(file, uuid4().hex)
    wandb = _import_wandb()
    return wandb.init(
        project=config.wandb,
        id=file.read_text(encoding="utf-8").strip(),
        resume="allow",
        name=folder.name,
        dir=str(folder),
        config=config.model_dump(mode="json"),
        settings=wandb.Settings(silent=True, console="off", init_timeout=_CONNECT_S),
    )


def _import_wandb() -> Any:
    logging.getLogger("wandb").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import wandb
    return wandb


class EventFile:
    """A new TensorBoard event file in `folder`. The file replaces the metrics of older files from `step` on.

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
        """Write the metrics of a step, so that TensorBoard shows them at once. Raises OSError."""
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
