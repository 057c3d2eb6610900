import errno
import json
from types import SimpleNamespace

import pytest

from agentrl import Trajectory
from agentrl._util import files
from agentrl.errors import ConfigError
from agentrl.train import model_folder
from agentrl.train.run_folder import RunFolder, step_name


@pytest.fixture
def folder(tmp_path, make_config):
    folder = RunFolder(tmp_path / "run")
    folder.create(make_config())
    yield folder
    folder.unlock()


def touch(path):
    (path / "config.json").write_text("{}")


def test_holds_one_run_only(folder, make_config, tmp_path):
    with pytest.raises(ConfigError, match=r"run holds another run; add --resume to continue it, or choose another"):
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
    folder.check(make_config(steps=99, eval_every=3, data="moved.jsonl"), resume=True)

    folder.check(make_config(learning_rate=0.01), resume=True)
    with pytest.raises(ConfigError, match=r"max_grad_norm was 1\.0 and is now 0\.01; restore it"):
        folder.check(make_config(max_grad_norm=0.01), resume=True)


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

    assert {file.name for file in folder.latest_checkpoint().iterdir()} == {"new", "files.json"}


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

    folder.save_model(folder.model, 3, touch)
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


def test_an_error_of_safetensors_is_an_error_of_the_disk(tmp_path):
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()

    def fail(path):
        path.chmod(0o755)
        raise RuntimeError("Error while serializing: I/O error: Permission denied (os error 13)")

    with pytest.raises(PermissionError) as caught:
        folder.save_checkpoint(2, fail)
    assert caught.value.filename == str(folder.checkpoints / "step_000002")


def test_only_its_own_names_are_checkpoints(folder):
    for name in ("step_best", "step_7", "step_0000009", "step_000099.bak"):
        (folder.checkpoints / name).mkdir()
    (folder.checkpoints / "step_000098").touch()
    for step in (1, 2, 999_999, 1_000_000):
        folder.save_checkpoint(step, touch)

    assert folder.latest_checkpoint() == folder.checkpoints / "step_1000000"
    kept = {path.name for path in folder.checkpoints.iterdir()}
    assert {name for name in kept if name not in ("step_000098",)} == {
        *("step_best", "step_7", "step_0000009", "step_000099.bak"),
        *("step_999999", "step_1000000"),
    }


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1, *file.read_bytes()[1:]]))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda c: cut(c / "config.json"), "config.json is not as it was written"),
        (lambda c: flip(c / "config.json"), "config.json is not as it was written"),
        (lambda c: (c / "config.json").unlink(), "config.json: No such file or directory"),
        (lambda c: (c / "files.json").write_text("{"), "files.json cannot be read"),
    ],
    ids=["cut short", "a bit flipped", "gone", "no list of files"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(folder, caplog, harm, says):
    first, second = (folder.save_checkpoint(step, touch) for step in (4, 6))
    harm(second)

    warnings = []
    assert folder.latest_checkpoint(warnings.append) == model_folder(folder.path) == first
    assert warnings == [f"{second} is damaged: {says}; taking the one before"] == caplog.messages

    folder.save_checkpoint(5, touch)
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step_000004", "step_000005"}

    harm(first)
    harm(folder.checkpoints / "step_000005")
    with pytest.raises(ConfigError, match=r"step_000005 is damaged: .*, and so is every other; begin a new run"):
        folder.latest_checkpoint()


def test_the_newest_weights_are_taken_final_or_not(folder):
    folder.save_checkpoint(3, touch)
    folder.save_model(folder.model, 3, touch)
    assert model_folder(folder.path) == folder.model

    folder.save_checkpoint(5, touch)  # the run goes on
    assert model_folder(folder.path) == folder.checkpoints / "step_000005"

    folder.save_model(folder.model, 6, lambda path: (path / "new").touch())
    assert model_folder(folder.path) == folder.model
    assert {path.name for path in folder.model.iterdir()} == {"new", "files.json"}
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_on_any_system(folder, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    folder.save_model(folder.model, 1, touch)
    folder.save_model(folder.model, 2, lambda path: (path / "new").touch())
    assert {path.name for path in folder.model.iterdir()} == {"new", "files.json"}
    assert not list(folder.path.glob(".model*"))


def test_it_is_on_the_disk_before_it_has_its_name(folder, monkeypatch):
    done = []
    monkeypatch.setattr(files, "sync", lambda path: done.append(path.name))
    monkeypatch.setattr(files, "_take_place", lambda temporary, target: done.append("rename"))

    folder.save_checkpoint(1, lambda path: ((path / "sub").mkdir(), (path / "sub" / "weights").touch()))

    before = done[: done.index("rename")]
    assert {"weights", "sub", "files.json", ".step_000001.tmp"} == set(before)
    assert done[-2:] == ["rename", "checkpoints"]


def test_one_process_at_a_time(folder, make_config, tmp_path):
    second = RunFolder(folder.path)
    with pytest.raises(ConfigError, match="another process is training in this folder; wait for its end, or end it"):
        second.lock()
    folder.unlock()
    second.lock()
    second.unlock()


def test_two_that_begin_at_once(tmp_path, make_config):
    first, second = RunFolder(tmp_path / "both"), RunFolder(tmp_path / "both")
    first.check(make_config(), resume=False)
    second.check(make_config(), resume=False)
    first.create(make_config())
    with pytest.raises(ConfigError, match="another process is training"):
        second.create(make_config())
    first.unlock()
    with pytest.raises(ConfigError, match="holds another run"):
        second.create(make_config())


@pytest.mark.parametrize("there", [True, False])
def test_what_is_discarded_was_never_there(tmp_path, make_config, there):
    folder = RunFolder(tmp_path / "new")
    if there:
        folder.path.mkdir()
    folder.create(make_config())
    folder.save_checkpoint(0, touch)
    folder.discard()
    assert folder.path.exists() == there
    folder.check(make_config(), resume=False)


def test_the_engines_log_stays_and_is_in_nobodys_way(tmp_path, make_config):
    folder = RunFolder(tmp_path / "new")
    folder.create(make_config())
    (folder.path / "engine.log").write_text("RuntimeError: no memory")
    folder.discard()
    assert [path.name for path in folder.path.iterdir()] == ["engine.log"]
    folder.unlock()
    again = RunFolder(tmp_path / "new")
    again.check(make_config(), resume=False)
    again.create(make_config())
    assert (again.path / "engine.log").read_text() == "RuntimeError: no memory"


def test_a_damaged_line_of_metrics_is_named(folder):
    folder.metrics.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl:2: not JSON .*; delete this line"):
        folder.read_metrics()


def test_a_run_on_a_file_system_without_locks_gets_a_warning(tmp_path, make_config, monkeypatch, caplog):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    folder = RunFolder(tmp_path / "nfs")
    folder.create(make_config())
    folder.unlock()
    assert "cannot be locked (No locks available)" in caplog.text
