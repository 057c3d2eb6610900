"""Trackers get the figures of a run: TensorBoard, Weights & Biases, Trackio, MLflow, and classes of users."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, runtime_checkable
from uuid import uuid4

from agentrl._util.files import write_atomically
from agentrl._util.loading import load_object
from agentrl.errors import ConfigError
from agentrl.train.config import TrainConfig
from agentrl.train.report import BOARD
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

_ID = "tracker_id"
"""The file in the run folder with the id of the run. A resumed run has the same id, and continues its curve."""
_CONNECT_S = 30
_END_S = 60
"""Seconds that a tracker may take at the end of a run."""
_MOST_CALLS = 1000
_MOST_ROWS = 32
_PROJECT = "agentrl"

Row: TypeAlias = dict[str, str | float | int | None]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run, for the `start` of a tracker."""

    id: str
    """Unique. A resumed run has the id of its first process."""
    name: str
    """The name of the run folder, and the first digits of the id."""
    folder: Path
    config: Mapping[str, JSON]
    step: int
    """The last finished step. Later figures, from before a kill, come again."""


@runtime_checkable
class Tracker(Protocol):
    """Gets the figures of a run. The constructor gets the settings under the tracker's name, as keywords.

    The methods are called in order, in a thread of the tracker: a slow tracker delays no step. After an error, a
    warning is printed once, and the tracker is not called again.
    """

    def start(self, run: TrackedRun) -> None: ...

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        """The numbers of a line of metrics.jsonl."""
        ...

    def episodes(self, step: int, name: str, episodes: Sequence[Trajectory]) -> None:
        """The recorded episodes of a step (`name` is train), or of an evaluation (eval)."""
        ...

    def finish(self) -> None: ...


class Trackers:
    """The trackers of a configuration. Raises ConfigError for an unknown name, a missing package or a wrong setting."""

    def __init__(self, config: TrainConfig, warn: Callable[[str], None]) -> None:
        self._config, self._warn = config, warn
        self._feeds = [_Feed(name, _made(name, settings)) for name, settings in _chosen(config.trackers)]

    def start(self, folder: Path, step: int) -> None:
        """Start the trackers of the run in `folder`. `step` is the last finished step."""
        if self._feeds and not (folder / _ID).exists():
            write_atomically(folder / _ID, uuid4().hex)
        for feed in self._feeds:
            number = (folder / _ID).read_text(encoding="utf-8").strip()
            config = self._config.model_dump(mode="json")
            feed.start(TrackedRun(number, f"{folder.name}-{number[:8]}", folder, config, step))

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Pass on the numbers among the metrics of a step."""
        figures = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "step"}
        self._call(lambda tracker: tracker.metrics(step, figures))

    def add_episodes(self, step: int, name: str, groups: Sequence[Sequence[Trajectory]]) -> None:
        if episodes := [episode for group in groups for episode in group]:
            self._call(lambda tracker: tracker.episodes(step, name, episodes))

    def close(self) -> None:
        """Finish all trackers, and wait at most a minute."""
        self._call(lambda tracker: tracker.finish())
        for feed in self._feeds:
            feed.calls.put(None)
        until = time.monotonic() + _END_S
        for feed in self._feeds:
            feed.wait(until - time.monotonic())
        self._call(None)

    def _call(self, call: Callable[[Tracker], None] | None) -> None:
        for feed in list(self._feeds):
            if feed.failure is not None:
                self._feeds.remove(feed)
                self._warn(f"tracker {feed.name}: {feed.failure:.300}; continuing without it")
            elif call is not None:
                feed.add(call)


class _Feed:
    """Calls a tracker in a thread. After the first error, `failure` has the error in a line."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.failure: str | None = None
        self.calls: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        self._tracker = tracker
        self._thread = threading.Thread(target=self._work, name=f"agentrl-{name}", daemon=True)

    def start(self, run: TrackedRun) -> None:
        self.calls.put(lambda tracker: tracker.start(run))
        self._thread.start()

    def add(self, call: Callable[[Tracker], None]) -> None:
        self.calls.put(call)
        if self.calls.qsize() > _MOST_CALLS:
            self.failure = f"does not keep up: {_MOST_CALLS} calls wait"

    def wait(self, seconds: float) -> None:
        """Wait until all calls have ended."""
        if self._thread.ident is not None:
            self._thread.join(max(seconds, 0))
            if self._thread.is_alive():
                self.failure = f"has not finished in {_END_S} seconds"

    def _work(self) -> None:
        try:
            while (call := self.calls.get()) is not None:
                call(self._tracker)
        except BaseException as exc:  # noqa: BLE001 - an error of a tracker must not end a run
            self.failure = " ".join(f"{type(exc).__name__}: {exc}".split())


def _chosen(trackers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The trackers to make. TensorBoard is a default: without tensorboardX it is left out, and the last lines of the
    run say so."""
    for name, settings in trackers.items():
        if name != "tensorboard" or find_spec("tensorboardX") is not None:
            yield name, settings


def _made(name: str, settings: Mapping[str, Any]) -> Tracker:
    cls = _NAMED.get(name)
    if cls is None and not {".", ":"} & set(name):
        raise ConfigError(f"trackers: {name} is neither {', '.join(_NAMED)} nor file.py:Class; name one of these")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tracker: Tracker = (cls or load_object(name))(**settings)
    except ImportError as exc:
        raise ConfigError(f"trackers: {name} is not installed ({exc}): pip install {name}") from exc
    except Exception as exc:  # the constructor of a user's class may raise anything
        raise ConfigError(f"trackers.{name}: {' '.join(str(exc).split()):.300}; correct its settings") from exc
    return tracker


def _rows(episodes: Sequence[Trajectory]) -> list[Row]:
    """A row for each episode, at most 32: the facts, the prompt, and the model's last words."""
    return [
        {
            "task": episode.task.id,
            "reward": episode.reward,
            "stop": str(episode.stop.value) if episode.stop else None,
            "turns": len(episode.turns),
            "prompt": str(episode.task.prompt),
            "reply": episode.actions[-1].text if episode.actions else "",
        }
        for episode in episodes[:_MOST_ROWS]
    ]


def _text(episodes: Sequence[Trajectory]) -> str:
    """The rows as Markdown, with a line for each value."""
    return "\n\n".join("  \n".join(f"{key}: {value}" for key, value in row.items()) for row in _rows(episodes))


class TensorBoard:
    """A new TensorBoard event file in the run folder. The file replaces the metrics of older files from the first new
    step on."""

    def start(self, run: TrackedRun) -> None:
        # SummaryWriter writes in a thread: a full disk would end the thread, and later block the run.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        (run.folder / BOARD).mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, which have whole seconds.
        self._file = EventsWriter(str(run.folder / BOARD / "events"), f".{time.time_ns()}")
        self._write(Event(step=run.step + 1, session_log=SessionLog(status=SessionLog.START)))

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the metrics of a step, so that TensorBoard shows them at once. Raises OSError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def episodes(self, step: int, name: str, episodes: Sequence[Trajectory]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import text

        self._write(Event(step=step, summary=text(f"episodes/{name}", _text(episodes))))

    def finish(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)
        self._file.flush()


class WandB:
    """Weights & Biases. `project`, and any arguments of `wandb.init`."""

    def __init__(self, project: str = _PROJECT, **settings: Any) -> None:
        logging.getLogger("wandb").setLevel(logging.ERROR)
        import wandb

        self._wandb, self._settings = wandb, {"project": project, **settings}

    def start(self, run: TrackedRun) -> None:
        quiet = self._wandb.Settings(silent=True, console="off", init_timeout=_CONNECT_S)
        about = {"id": run.id, "name": run.name, "dir": str(run.folder), "config": run.config, "resume": "allow"}
        self._run = self._wandb.init(**{"settings": quiet, **about, **self._settings})

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        # W&B ignores a step that it already has. A step that is repeated after a kill has the same figures.
        self._run.log(dict(figures), step=step)

    def episodes(self, step: int, name: str, episodes: Sequence[Trajectory]) -> None:
        rows = _rows(episodes)
        table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({f"episodes/{name}": table}, step=step)

    def finish(self) -> None:
        self._run.finish()


class Trackio:
    """Trackio. `project`, and any arguments of `trackio.init`, such as `space_id`."""

    def __init__(self, project: str = _PROJECT, **settings: Any) -> None:
        import trackio

        self._trackio, self._settings = trackio, {"project": project, **settings}

    def start(self, run: TrackedRun) -> None:
        about = {"name": run.name, "config": run.config, "resume": "allow", "embed": False}
        self._run = self._trackio.init(**{**about, **self._settings})

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def episodes(self, step: int, name: str, episodes: Sequence[Trajectory]) -> None:
        self._run.log({f"episodes/{name}": self._trackio.Markdown(_text(episodes))}, step=step)

    def finish(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow. `experiment`, and `tracking_uri` (default: the variable MLFLOW_TRACKING_URI)."""

    def __init__(self, experiment: str = _PROJECT, tracking_uri: str | None = None) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._client, self._experiment = MlflowClient(tracking_uri), experiment
        self._metric, self._param = Metric, Param

    def start(self, run: TrackedRun) -> None:
        client = self._client
        experiment = client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        earlier = client.search_runs([number], f"tags.agentrl_id = '{run.id}'")
        if earlier:
            self._run = earlier[0].info.run_id
            client.update_run(self._run, "RUNNING")
            return
        self._run = client.create_run(number, tags={"agentrl_id": run.id}, run_name=run.name).info.run_id
        client.log_batch(self._run, params=[self._param(key, str(value)[:500]) for key, value in run.config.items()])

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        now = round(time.time() * 1000)
        metrics = [self._metric(name, float(value), now, step) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def episodes(self, step: int, name: str, episodes: Sequence[Trajectory]) -> None:
        self._client.log_dict(self._run, {"episodes": _rows(episodes)}, f"episodes/{name}_{step:06d}.json")

    def finish(self) -> None:
        self._client.set_terminated(self._run)


_NAMED: Mapping[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}
