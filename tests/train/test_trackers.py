"""Trackers get the figures of a run. A tracker that fails or hangs ends nothing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl import Task, Trajectory
from agentrl.errors import ConfigError
from agentrl.train import TrackedRun, Tracker, trackers, train
from agentrl.train.trackers import TensorBoard, Trackers
from tests.train.played import lines
from tests.train.toy_runs import quiet

HERE = str(Path(__file__).with_name("recorders.py"))
RECORDER, BROKEN = f"{HERE}:Recorder", f"{HERE}:Broken"
SMALL = {"prompts_per_step": 2, "group_size": 2, "minibatches": 1, "keep": {"groups": 1}}


@pytest.fixture
def recorded(monkeypatch):
    """The calls of all recorders, in order."""
    calls = []
    module = importlib.import_module("tests.train.recorders")
    monkeypatch.setattr(trackers, "load_object", lambda path: getattr(module, path.rpartition(":")[2]))
    monkeypatch.setattr(module.Recorder, "calls", calls)
    return calls


def play(config, **options):
    console = quiet()
    train(config, console=console, **options)
    return console.file.getvalue()


def episode(reward, task="1"):
    trajectory = Trajectory(Task(prompt="say 1", id=task))
    trajectory.reward = reward
    return trajectory


def test_a_class_of_yours_gets_the_figures_of_a_run(make_config, recorded, tmp_path):
    assert isinstance(importlib.import_module("tests.train.recorders").Recorder(), Tracker)
    evaluated = {"eval_data": tmp_path / "tasks.jsonl", "eval_tasks": 2}
    play(make_config(**SMALL, **evaluated, steps=2, trackers={RECORDER: {"project": "agents"}}))

    (_, project, run), *rest, last = recorded
    assert (project, run.folder, run.step, run.config["prompts_per_step"]) == ("agents", tmp_path / "run", 0, 2)
    assert run.name == f"run-{run.id[:8]}"
    assert [call[:3] if call[0] == "episodes" else call[:2] for call in rest] == [
        ("episodes", 0, "eval"),
        *(("episodes", 1, "train"), ("metrics", 1), ("episodes", 2, "train"), ("metrics", 2)),
        ("episodes", 2, "eval"),
    ]
    assert last == ("finish",)
    for call, line in zip((call for call in rest if call[0] == "metrics"), lines(tmp_path / "run"), strict=True):
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name != "step"}
        assert numbers.items() <= call[2].items()
    assert [len(call[3]) for call in rest if call[0] == "episodes"] == [2, 2, 2, 2], "a group of two"


def test_a_resumed_run_has_its_id(make_config, recorded, tmp_path):
    config = make_config(trackers=RECORDER)
    (tmp_path / "run").mkdir()
    for step in (0, 3):
        tracked = Trackers(config, pytest.fail)
        tracked.start(tmp_path / "run", step)
        tracked.close()
    first, second = (call[2] for call in recorded if call[0] == "start")
    assert (first.id, first.step, second.step) == (second.id, 0, 3)


@pytest.mark.parametrize("method", ["start", "metrics", "episodes", "finish"])
def test_a_failing_one_is_a_warning(make_config, recorded, tmp_path, method):
    text = play(make_config(**SMALL, steps=2, trackers={BROKEN: {"at": method}, RECORDER: None}))

    line = f"warning: tracker {BROKEN}: SystemExit: no network in {method}; continuing without it\n"
    assert text.count("continuing without it") == text.count(line) == 1
    assert len(lines(tmp_path / "run")) == 2
    assert [call[1] for call in recorded if call[0] == "metrics"] == [1, 2], "the others go on"
    assert recorded[-1] == ("finish",)


def test_one_that_hangs_delays_no_step(make_config, recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "_END_S", 0.2)
    monkeypatch.setattr(trackers, "_MOST_CALLS", 3)
    (tmp_path / "run").mkdir()
    warnings = []
    chosen = {BROKEN: {"at": "metrics", "hangs": True}, RECORDER: {}}
    tracked = Trackers(make_config(trackers=chosen), warnings.append)
    tracked.start(tmp_path / "run", 0)
    for step in range(2):
        tracked.add(step, {"reward_mean": 1.0})
    assert not warnings
    tracked.close()
    assert [call[0] for call in recorded] == ["start", "metrics", "metrics", "finish"]
    assert warnings == [f"tracker {BROKEN}: has not finished in 0.2 seconds; continuing without it"]


def test_one_that_does_not_keep_up_is_left_behind(make_config, recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "_MOST_CALLS", 3)
    (tmp_path / "run").mkdir()
    warnings = []
    tracked = Trackers(make_config(trackers={BROKEN: {"at": "start", "hangs": True}}), warnings.append)
    tracked.start(tmp_path / "run", 0)
    for step in range(9):
        tracked.add(step, {})
    tracked.close()
    assert warnings == [f"tracker {BROKEN}: does not keep up: 3 calls wait; continuing without it"]


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (
            "wandbb",
            "trackers: wandbb is neither tensorboard, wandb, trackio, mlflow nor file.py:Class; name one of these",
        ),
        ({RECORDER: {"projekt": "x"}}, "unexpected keyword argument 'projekt'; correct its settings"),
        (f"{HERE}:NoProject", "NoProject: set MY_KEY; correct its settings"),
        ("wandb", "trackers: wandb is not installed (.*): pip install wandb"),
        ("trackio", "trackers: trackio is not installed (.*): pip install trackio"),
        ("mlflow", "trackers: mlflow is not installed (.*): pip install mlflow"),
    ],
    ids=["name", "setting", "constructor", "wandb", "trackio", "mlflow"],
)
def test_a_wrong_one_is_told_before_anything_is_written(make_config, recorded, monkeypatch, tmp_path, chosen, says):
    for package in ("wandb", "trackio", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=says):
        train(make_config(**SMALL, trackers=chosen))
    assert not (tmp_path / "run").exists()


def test_they_are_chosen_by_name_or_with_settings(make_config):
    assert make_config().trackers == {"tensorboard": {}}
    assert make_config(trackers=None).trackers == make_config(trackers=[]).trackers == {}
    assert make_config(trackers="wandb").trackers == {"wandb": {}}
    assert make_config(trackers=["wandb", "mlflow"]).trackers == {"wandb": {}, "mlflow": {}}
    assert make_config(trackers={"wandb": {"project": "a"}, "mlflow": None}).trackers["wandb"] == {"project": "a"}
    with pytest.raises(ConfigError, match="trackers"):
        make_config(trackers={"wandb": "agents"})


class FakeWandB(SimpleNamespace):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__(runs=[], Settings=lambda **values: values, Table=lambda **values: values)

    def init(self, **values):
        run = SimpleNamespace(values=values, logged=[], finished=0)
        run.log = lambda metrics, step: run.logged.append((step, metrics))
        run.finish = lambda: run.logged.append("finished")
        self.runs.append(run)
        return run


def test_what_wandb_gets(make_config, monkeypatch, tmp_path):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "run").mkdir()
    tracked = Trackers(make_config(trackers={"wandb": {"project": "agents", "entity": "team"}}), pytest.fail)
    tracked.start(tmp_path / "run", 0)
    tracked.add(1, {"step": 1, "reward_mean": 0.5, "stops": {"done": 1}})
    tracked.add_episodes(1, "train", [[episode(0.5)], [episode(None, "2")]])
    tracked.close()

    [run] = fake.runs
    assert {"project": "agents", "entity": "team", "resume": "allow"}.items() <= run.values.items()
    assert run.values["id"] == (tmp_path / "run" / "tracker_id").read_text()
    figures, (step, table), end = run.logged
    assert figures == (1, {"reward_mean": 0.5})
    assert (step, end) == (1, "finished")
    assert table["episodes/train"]["data"] == [["1", 0.5, None, 0, "say 1", ""], ["2", None, None, 0, "say 1", ""]]


def figures_of_tensorboard(folder):
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = module.EventAccumulator(str(folder / "run" / "tensorboard")).Reload()
    assert any(tag.startswith("episodes/train") for tag in reader.Tags()["tensors"])
    return {name: {event.step: event.value for event in reader.Scalars(name)} for name in ("reward_mean", "loss")}


def records_of_wandb(data):
    """The records of a file of an offline run: LevelDB's log format after a header of seven bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if (rest := -place % 32768) < 7:  # no header of a part begins there
            place += rest
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def figures_of_wandb(folder):
    from wandb.proto import wandb_internal_pb2

    figures = {"reward_mean": {}, "loss": {}}
    for file in (folder / "run" / "wandb").glob("offline-run-*/*.wandb"):
        for data in records_of_wandb(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            line = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            for name in figures.keys() & line.keys():
                figures[name][int(line["_step"])] = float(line[name])
    return figures


def figures_of_trackio(folder):
    from trackio.sqlite_storage import SQLiteStorage

    [run] = SQLiteStorage.get_runs("agentrl")
    rows = [row for row in SQLiteStorage.get_logs("agentrl", run) if "loss" in row]
    return {name: {row["step"]: row[name] for row in rows} for name in ("reward_mean", "loss")}


def figures_of_mlflow(folder):
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("agentrl").experiment_id])
    assert run.info.status == "FINISHED"
    assert client.list_artifacts(run.info.run_id, "episodes")
    history = {name: client.get_metric_history(run.info.run_id, name) for name in ("reward_mean", "loss")}
    return {name: {metric.step: metric.value for metric in metrics} for name, metrics in history.items()}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_the_real_ones_hold_the_same_figures(make_config, tmp_path, monkeypatch, name):
    """40 steps, of which the last 20 come from a resumed run."""
    settings = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    settings["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path}/mlflow.db"
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("tensorboardX" if name == "tensorboard" else name)
    (tmp_path / "run").mkdir()
    expected = {"reward_mean": {s: s / 64 for s in range(1, 41)}, "loss": {s: -s / 2 for s in range(1, 41)}}
    for steps in (range(1, 21), range(21, 41)):
        tracked = Trackers(make_config(trackers=name), pytest.fail)
        tracked.start(tmp_path / "run", steps[0] - 1)
        for step in steps:
            tracked.add(step, {"step": step, "reward_mean": step / 64, "loss": -step / 2, "stops": {"done": 4}})
            tracked.add_episodes(step, "train", [[episode(0.5), episode(None, "2")]])
        tracked.close()

    assert globals()[f"figures_of_{name}"](tmp_path) == expected


def test_tensorboard_reads_it_and_a_resumed_run_replaces_its_steps(tmp_path):
    pytest.importorskip("tensorboardX")
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first, second = TensorBoard(), TensorBoard()
    first.start(TrackedRun("1", "run", tmp_path, {}, 0))
    for step in (1, 2, 3):
        first.metrics(step, {"reward_mean": step / 4, "groups": 4, "ä" * 200: 1.0})
    second.start(TrackedRun("1", "run", tmp_path, {}, 2))  # in the same second
    second.metrics(3, {"reward_mean": 0.875})

    reader = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()  # still open: each step is written

    scalars = [(event.step, event.value) for event in reader.Scalars("reward_mean")]
    assert scalars == [(1, 0.25), (2, 0.5), (3, 0.875)]
    assert [event.step for event in reader.Scalars("ä" * 200)] == [1, 2]
    assert [event.value for event in reader.Scalars("groups")] == [4.0, 4.0]
    first.finish()
    second.finish()
    with pytest.raises(ValueError, match="closed file"):
        first.metrics(1, {"reward_mean": 0.5})
