"""A whole rehearsal of a program that only writes events: its stages, its ends, and the second start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentrl.rehearse import command, run
from agentrl.rehearse.launch import Flags, SlimeLaunch
from agentrl.rehearse.packages import Packages
from agentrl.rehearse.prepare import prepare
from agentrl.rehearse.run import RehearsalOptions, rehearse
from agentrl.rehearse.stages import SECOND_UPDATE

PROGRAM = Path(__file__).with_name("recorded_train.py")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A launch's folder, and no Ray: the program needs none."""
    from agentrl.models.tiny import tiny_tokenizer

    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "data.jsonl").write_text("{}\n")
    shutil.copy(PROGRAM, tmp_path / "train.py")
    monkeypatch.setattr(run, "prepare_packages", lambda say: Packages(Path(sys.executable), ()))
    monkeypatch.setattr(run, "start_ray", lambda processes, python, layout, variables, out, **_: dict(variables))
    monkeypatch.setattr(run, "prepare", without_weights)
    return tmp_path


def without_weights(*arguments, **options):
    """The program reads no weights, and to make some takes seconds."""
    prepared = prepare(*arguments, **options)
    prepared.weights = None
    return prepared


def words(folder, end):
    paths = f"--hf-checkpoint {folder}/model --prompt-data {folder}/data.jsonl --save {folder}/saved"
    return f"{paths} --num-rollout 9 --rollout-batch-size 2 --n-samples-per-prompt 2 --end {end}".split()


def played(folder, end="well", **options):
    launch = SlimeLaunch(folder / "train.py", Flags.of(words(folder, end)), dict(os.environ), folder)
    lines = []
    report = rehearse(launch, RehearsalOptions(folder / "out", **options), lines.append, lambda plan: None)
    return report, lines


def states(report):
    return {stage.name: str(stage.state) for stage in report.stages}


def test_a_good_launch(folder):
    report, lines = played(folder)
    assert report.problems == []
    assert report.verdict == "good"
    assert states(report)[SECOND_UPDATE] == states(report)["resume"] == "ok"
    assert {str(stage.state) for stage in report.stages} == {"ok"}
    assert lines[0].split()[:2] == ["ok", "cluster"]
    assert not (folder / "saved").exists(), "the folder of checkpoints is as before"
    saved = json.loads((folder / "out/report.json").read_text())
    assert saved["verdict"] == "good"
    assert saved["figures"]["memory_bytes"] > 0
    assert "the last line" in (folder / "out/log.txt").read_text()


def test_no_resume(folder):
    report, _ = played(folder, resume=False)
    assert "resume" not in states(report)
    assert report.is_good


def test_a_stage_that_raises(folder):
    report, _ = played(folder, "raises")
    assert states(report)["weights"] == "failed"
    assert states(report)["rollout"] == "not reached"
    assert report.problems[0].startswith("weights failed: ValueError: no such weight (")
    assert "resume" not in states(report)


def test_a_stage_that_hangs_is_ended(folder):
    report, _ = played(folder, "hangs", timeout_s=4.0)
    assert states(report)["engines"] == "timed out"
    assert report.problems == ["engines timed out: no end after 4 s (--timeout)"]


def test_a_second_start_that_begins_anew(folder):
    report, _ = played(folder, "forgets")
    assert states(report)["resume"] == "failed"
    assert "the second start played rollout 0: 2 was next" in report.problems[0]


def test_a_wrong_size_is_a_problem_although_nothing_stops(folder):
    launch = SlimeLaunch(
        folder / "train.py", Flags.of([*words(folder, "well"), "--num-layers", "36"]), dict(os.environ), folder
    )
    report = rehearse(launch, RehearsalOptions(folder / "out", resume=False), lambda line: None, lambda plan: None)
    assert report.problems == ["arguments: --num-layers 36: the checkpoint has num_hidden_layers 4"]


def test_a_mistake_that_smaller_batches_would_heal(folder):
    flags = Flags.of([*words(folder, "well"), "--global-batch-size", "64"])
    launch = SlimeLaunch(folder / "train.py", flags, dict(os.environ), folder)
    report = rehearse(launch, RehearsalOptions(folder / "out", resume=False), lambda line: None, lambda plan: None)
    (problem,) = report.problems
    assert problem.startswith("arguments: --global-batch-size 64 is more than the 4 episodes of a rollout")
    assert {str(stage.state) for stage in report.stages} == {"ok"}, "the rest is played"


REFUSING = """
import argparse
from agentrl.rehearse.standins import stages

@stages.logging_arguments
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-rollout", choices=["1"])
    parser.parse_known_args()
"""


def test_nothing_is_started_if_slime_refuses_the_flags_as_written(folder):
    (folder / "slime/utils").mkdir(parents=True)
    (folder / "slime/utils/arguments.py").write_text(REFUSING)
    report, _ = played(folder)
    assert states(report) == {"arguments": "failed"}
    (problem,) = report.problems
    assert problem.startswith("arguments failed: ValueError: argument --num-rollout: invalid choice: '9'")


def test_an_engine_that_is_given_away_is_not_left_behind(folder):
    """A launch whose own folder of checkpoints exists keeps its files."""
    (folder / "saved").mkdir()
    (folder / "saved/mine").touch()
    played(folder, resume=False)
    assert [file.name for file in (folder / "saved").iterdir()] == ["mine"]


WRAPPED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import typer
from agentrl.rehearse import command, run
from agentrl.rehearse.packages import Packages
from tests.rehearse.test_run import without_weights
run.prepare_packages = lambda say: Packages(Path(sys.executable), ())
run.start_ray = lambda processes, python, layout, variables, out, **_: dict(variables)
run.prepare = without_weights
app = typer.Typer()
app.command()(command.rehearse)
app()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_rehearsal_leaves_a_report_and_no_process(folder, number):
    arguments = ["--out", str(folder / "out"), "--", "python3", str(folder / "train.py"), *words(folder, "hangs")]
    code = WRAPPED.format(tests=str(PROGRAM.parents[2]))
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=folder)
    deadline = time.monotonic() + 60
    while not (folder / "out/hanging").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "rehearsal: interrupted" in output
    saved = json.loads((folder / "out/report.json").read_text())
    assert [stage["state"] for stage in saved["stages"] if stage["name"] in ("router", "engines")] == ["ok", "running"]
    marker = f"AGENTRL_REHEARSAL={folder / 'out'}".encode()
    assert not [file for file in Path("/proc").glob("[0-9]*/environ") if marker in read(file)]


def read(file):
    try:
        return file.read_bytes()
    except OSError:
        return b""


# ---- the command


@pytest.fixture
def call(folder):
    app = typer.Typer()
    app.command()(command.rehearse)
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


def test_the_command_prints_a_report(call, folder):
    result = call("--no-resume", "--out", folder / "out", "--", "python3", folder / "train.py", *words(folder, "well"))
    assert result.exit_code == 0, result.output
    for part in ("Replaced flags", "--num-rollout", "ok        training", "rehearsal: good"):
        assert part in result.output


def test_the_command_prints_json_alone_on_stdout(call, folder):
    arguments = ("--json", "--no-resume", "--out", folder / "out")
    result = call(*arguments, "--", "python3", folder / "train.py", *words(folder, "raises"))
    assert result.exit_code == 1
    assert json.loads(result.stdout)["stages"][0]["name"] == "cluster"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.sh",), "no such file"),
        (("--", "python3", "other.py"), "no train.py"),
        (("--rollouts", "0", "run.sh"), "greater than or equal to 1"),
        ((), "Missing argument"),
    ],
)
def test_a_wrong_command(call, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_folder_of_somebody_else_is_refused(call, folder):
    (folder / "out").mkdir()
    (folder / "out/file").touch()
    result = call("--out", folder / "out", "--", "python3", folder / "train.py", *words(folder, "well"))
    assert result.exit_code == 2
    assert "is not empty" in result.output
    assert (folder / "out/file").exists()
