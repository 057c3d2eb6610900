import errno
import json
from types import SimpleNamespace

import pytest

from agentrl import Trajectory
from agentrl.errors import ConfigError
from agentrl.train import model_folder
from agentrl.train.run_folder import RunFolder, step_name


@pytest.fixture
def folder(tmp_path, make_config):
    folder = RunFolder(tmp_path / "run")
    folder.create(make_config())
    return folder


def touch(path):
    (path / "config.json").write_text("{}")


def test_holds_one_run_only(folder, make_config, tmp_path):
    with pytest.raises(ConfigError, match=r"run holds another run; add --resume to go on with it, or choose another"):
        folder.check(make_config(), resume=False)

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not an empty folder; choose another folder"):
        RunFolder(tmp_path / "full").check(make_config(), resume=False)
    with pytest.raises(ConfigError, match=r"--resume: .*full holds no run; leave --resume out"):
        RunFolder(tmp_path / "full").check(make_config(), resume=True)

    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").check(make_config(), resume=False)
    assert not list((tmp_path / "empty").iterdir())


def test_goes_on_with_the_same_learning_only(folder, make_config):
    folder.check(make_config(steps=99, eval_every=3), resume=True)

    with pytest.raises(ConfigError, match=r"learning_rate was 0\.0003 and is now 0\.01; restore it"):
        folder.check(make_config(learning_rate=0.01), resume=True)


def test_a_checkpoint_that_fails_half_way_is_not_there(folder):
    folder.save_checkpoint(1, touch)

    def breaks(path):
        touch(path)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.save_checkpoint(2, breaks)

    assert folder.latest_checkpoint() == folder.checkpoints / "step_000001"
    folder.save_checkpoint(2, touch)
    assert folder.latest_checkpoint() == folder.checkpoints / "step_000002"


def test_the_last_two_checkpoints_are_kept(folder):
    for step in (0, 9, 10, 100):
        folder.save_checkpoint(step, touch)

    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step_000010", "step_000100"]


def test_a_checkpoint_may_be_written_again(folder):
    folder.save_checkpoint(1, touch)
    folder.save_checkpoint(1, lambda path: (path / "new").touch())

    assert [file.name for file in folder.latest_checkpoint().iterdir()] == ["new"]


def test_rewinding_forgets_what_came_after(folder):
    for step in (1, 2, 3):
        folder.append_metrics({"step": step})
        folder.write_trajectories(step_name(step), [Trajectory()])
    folder.write_trajectories("eval_start", [])
    with folder.metrics.open("a") as file:
        file.write('{"step": 4, "rew')  # a kill in the middle of a line

    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3]
    folder.rewind(2)

    assert folder.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    names = sorted(file.name for file in folder.trajectories.iterdir())
    assert names == ["eval_start.jsonl", "step_000001.jsonl", "step_000002.jsonl"]


def test_trajectories_can_be_read_back(folder):
    folder.write_trajectories("x", [Trajectory(session_id="é")])

    [line] = (folder.trajectories / "x.jsonl").read_text(encoding="utf-8").splitlines()
    assert Trajectory.from_json(json.loads(line)).session_id == "é"


def test_a_run_folder_stands_for_its_newest_weights(folder, tmp_path):
    assert model_folder("tiny").name == "tiny"
    assert model_folder(tmp_path) == tmp_path
    with pytest.raises(ConfigError, match="without a checkpoint yet"):
        model_folder(folder.path)

    folder.save_checkpoint(3, touch)
    assert model_folder(folder.path) == folder.checkpoints / "step_000003"

    folder.save_model(folder.model, touch)
    assert model_folder(str(folder.path)) == folder.model


def test_a_full_disk_leaves_the_checkpoints_before_it(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    first = folder.save_checkpoint(1, lambda path: (path / "weights").write_text("whole"))

    def fail(path):
        (path / "weights").write_text("ha")
        raise RuntimeError("unexpected pos 1974976 vs 1974868")

    with pytest.raises(RuntimeError, match="unexpected pos"):
        folder.save_checkpoint(2, fail)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(OSError, match="No space left on device") as caught:
        folder.save_checkpoint(2, fail)

    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(folder.checkpoints / "step_000002"))
    assert list(folder.checkpoints.iterdir()) == [first]
