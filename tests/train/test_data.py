"""A run on several data sets with columns of another form, and without prompts that are too long."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from agentrl.errors import ConfigError
from agentrl.rollout.data.tasks import TaskFile
from agentrl.train import TrainConfig, data, train


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def two_sets(tmp_path, make_config):
    """Nine rows of the first for three of the second, one of which is too long."""
    short = [{"q": f"say {i}", "a": i / 100, "about": json.dumps({"n": i})} for i in range(9)]
    odd = [{"q": "say it " * (200 if i == 1 else 1), "a": 0.5} for i in range(3)]
    first, second = write(tmp_path / "a.jsonl", short), write(tmp_path / "b.jsonl", odd)
    columns = {"input_key": "q", "label_key": "a", "metadata_key": "about"}

    def make(**values):
        return make_config(
            data={first: 3, second: 1}, columns=columns, max_prompt_tokens=50, prompts_per_step=4, **values
        )

    return make


def tasks_of(folder):
    index = (folder / "trajectories").glob("step_*.jsonl")
    return [json.loads(line)["task"] for file in sorted(index) for line in file.read_text().splitlines()]


@pytest.mark.thorough
def test_a_run_on_two_data_sets(two_sets, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "IN_MEMORY", 0)  # both stay on disk
    said = io.StringIO()
    config = two_sets(steps=3, keep={"groups": 4})
    train(config, console=Console(file=said, width=1000))
    tasks = tasks_of(config.out)[:: config.group_size]
    assert [task["id"][0] for task in tasks].count("b") == 3
    assert all(task["metadata"] == {"n": int(task["id"][2:]) - 1} for task in tasks if task["id"][0] == "a")
    metrics = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["too_long_prompts"] == 1
    assert said.getvalue().count("more than max_prompt_tokens (50)") == 1
    state = json.loads((config.out / "checkpoints" / "step_000003" / "state.json").read_text())["data"]
    assert state["source"]["drawn"] == [9, 3]
    train(two_sets(steps=4), resume=True, console=Console(file=said, width=1000))

    again = TrainConfig.from_yaml(config.out / "config.yaml")
    assert {path.name: weight for path, weight in again.data.items()} == {"a.jsonl": 3, "b.jsonl": 1}


def test_a_large_file_stays_on_disk(two_sets, monkeypatch):
    opened = []
    monkeypatch.setattr(data, "TaskFile", lambda *args, **values: opened.append(args) or TaskFile(*args, **values))
    config = two_sets()
    envs = data.EnvFactory(config.env, config.env_config)
    data.training_tasks(config, envs)
    assert opened == []
    monkeypatch.setattr(data, "IN_MEMORY", 100)
    data.training_tasks(config, envs)
    assert len(opened) == 2


@pytest.mark.parametrize(("given", "says"), [({}, "names no file"), ({"a.jsonl": 0}, "greater than 0")])
def test_data_that_cannot_be_weighed(make_config, given, says):
    with pytest.raises(ConfigError, match=says):
        make_config(data=given)


LABELS = ["72", "", "73", "one\ntwo"]


def labelled(path, labels):
    path.write_text("\n".join(json.dumps({"prompt": f"q {i}", "label": label}) for i, label in enumerate(labels)))
    return path


def loaded(config):
    envs = data.EnvFactory(config.env, config.env_config)
    return data.training_tasks(config, envs), data.evaluation_tasks(config, envs)


@pytest.mark.parametrize("in_memory", [0, 1 << 20], ids=["on disk", "in memory"])
def test_labels_that_the_grader_can_never_pay_are_refused(make_config, tmp_path, monkeypatch, in_memory):
    monkeypatch.setattr(data, "IN_MEMORY", in_memory)
    path = labelled(tmp_path / "bad.jsonl", LABELS)
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2: no answer can match the label ''")):
        loaded(make_config(data=path, reward="agentrl.rewards:math"))
    loaded(make_config(data=path))  # its Env scores: no grader reads the labels


def test_labels_of_held_out_tasks_too(make_config, tmp_path):
    good, bad = labelled(tmp_path / "good.jsonl", ["1"]), labelled(tmp_path / "bad.jsonl", LABELS)
    with pytest.raises(ConfigError, match=r"bad\.jsonl:2: .*; other refused lines: 4"):
        loaded(make_config(data=good, eval_data=bad, reward="agentrl.rewards:math"))


def test_later_rows_of_a_large_file_are_warned_of_when_they_are_drawn(make_config, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(data, "IN_MEMORY", 0)
    monkeypatch.setattr(data, "_LOOKED_AT", 1)
    path = labelled(tmp_path / "large.jsonl", LABELS)
    source, _ = loaded(make_config(data=path, reward="agentrl.rewards:math"))
    assert not caplog.records
    for _ in LABELS:
        source.draw()
    lines = sorted(record.getMessage() for record in caplog.records)
    assert [line.partition(":")[0] for line in lines] == ["task large-2", "task large-4"]
