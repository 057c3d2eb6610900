from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentrl.rehearse.standins import events


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def short(folder):
    return [(event["stage"], event["event"], event["rollout"]) for event in events.read(folder)]


def test_a_stage_has_a_begin_and_an_end(folder):
    with events.stage("training", 3):
        events.log("training", "data", rollout=3, loss=0.5)
    assert short(folder) == [("training", "begin", 3), ("training", "data", 3), ("training", "end", 3)]
    assert (folder / "events" / f"{os.getpid()}.jsonl").is_file()
    assert events.read(folder)[1]["data"] == {"loss": 0.5}


def test_an_error_is_logged_once_where_it_was_raised(folder):
    with pytest.raises(ValueError, match="no reward"), events.stage("rollout"), events.stage("conversion"):
        raise ValueError("no reward")
    errors = [event for event in events.read(folder) if event["event"] == "error"]
    assert [(event["stage"], event["error"]) for event in errors] == [("conversion", "ValueError: no reward")]
    file, _, line = errors[0]["trace"].rpartition(":")
    assert file == __file__
    assert "raise ValueError" in Path(file).read_text().splitlines()[int(line) - 1]


def test_a_bare_assert_has_its_line_of_code(folder):
    with pytest.raises(AssertionError), events.stage("router"):
        exec(compile("assert process", "nowhere.py", "exec"), {"process": None})  # a file that cannot be read
    with pytest.raises(LookupError), events.stage("router"):
        raise LookupError
    errors = [event["error"] for event in events.read(folder) if event["event"] == "error"]
    assert errors == ["AssertionError: ", "LookupError: raise LookupError"]


def test_the_end_of_a_worker_is_no_error(folder):
    with pytest.raises(SystemExit), events.stage("engines"):
        raise SystemExit(1)
    assert short(folder) == [("engines", "begin", None)]


def test_without_a_rehearsal_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(events.FOLDER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with events.stage("ray"):
        pass
    events.log_samples(0, {"tokens": [[1]]})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_does_not_stop_slime(tmp_path, monkeypatch):
    (tmp_path / "events").write_text("a file")
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    with events.stage("ray"):
        pass


def test_events_of_processes_are_read_in_order_of_time(folder):
    for name, times in {"1": (1.0, 4.0), "2": (2.0, 3.0)}.items():
        for t in times:
            events.append(folder / f"events/{name}.jsonl", {"t": t})
    with (folder / "events/1.jsonl").open("a") as file:
        file.write('{"t": 5.0, "sta')  # the process was killed
    assert [event["t"] for event in events.read(folder)] == [1.0, 2.0, 3.0, 4.0]


def test_values_become_plain(folder):
    torch = pytest.importorskip("torch")
    value = {"a": torch.tensor([1.5, 2.0]), "b": float("nan"), "c": {3: (1, "x")}, "d": object, "e": torch.tensor(2)}
    result = events.plain(value)
    assert result["a"] == [1.5, 2.0]
    assert result["b"] is None
    assert result["c"] == {"3": [1, "x"]}
    assert result["e"] == 2
    json.dumps(result, allow_nan=False)


def test_samples_are_logged_with_what_slime_has(folder):
    events.log_samples(
        2,
        {
            "tokens": [[1, 2, 3], [4, 5]],
            "loss_masks": [[0, 1], [1]],
            "rollout_log_probs": [[0.0, -1.0], [-2.0]],
            "sample_indices": [7, 8],
            "rollout_ids": [0, 1],
        },
    )
    lines = [json.loads(line) for line in (folder / f"samples/{os.getpid()}.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "rollout": 2,
        "index": 7,
        "group": 0,
        "tokens": [1, 2, 3],
        "loss_mask": [0, 1],
        "log_probs": [0.0, -1.0],
        "reward": None,
    }
    assert lines[1]["tokens"] == [4, 5]
