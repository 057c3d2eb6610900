"""The command that a script or the words of a command line start, read without starting anything."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.rehearse import launch as module
from agentrl.rehearse.launch import Flag, Flags, captured, read
from agentrl.slime.init import write

SOURCE = os.environ.get("SLIME_SRC", "")
needs_slime = pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source")
SLIMES_SCRIPTS = (
    "run-qwen3-4B.sh",
    "run-qwen3-32B.sh",
    "run-glm4-9B.sh",
    "run-qwen3-30B-A3B.sh",
    "run-qwen2.5-0.5B-gb10-smoke.sh",
    "run-qwen3-4B-base-sft.sh",
    "run-moonlight-16B-A3B.sh",
)


@pytest.fixture
def slime(tmp_path):
    """A folder with a train.py that must not run, and a model's file."""
    root = tmp_path / "slime"
    (root / "scripts/models").mkdir(parents=True)
    (root / "train.py").write_text("raise SystemExit('it ran')\n")
    (root / "scripts/models/qwen3-4B.sh").write_text("MODEL_ARGS=(--num-layers 36)\n")
    return root


@pytest.fixture
def script(slime):
    """A function that writes a script into slime's scripts, and captures its command."""

    def capture(text, *words):
        file = slime / "scripts/run.sh"
        file.write_text(text)
        return captured(file, words)

    return capture


def test_flags_keep_their_order_and_the_last_one_counts():
    flags = Flags.of(["--a", "1", "--switch", "--b=2", "--a", "3", "4", "--top-k", "-1"])
    assert flags == (
        Flag("--a", ("1",)),
        Flag("--switch"),
        Flag("--b", ("2",)),
        Flag("--a", ("3", "4")),
        Flag("--top-k", ("-1",)),
    )
    assert flags.values("--a") == ("3", "4")
    assert flags.number("--top-k", 5) == -1
    assert flags.number("--switch", 5) == 5
    assert flags.text("--missing", "x") == "x"


def test_a_command(slime, monkeypatch):
    monkeypatch.setenv("SEEN", "shell")
    launch = read(["python3", f"{slime}/train.py", "--num-layers", "2"])
    assert launch.program == slime / "train.py"
    assert launch.flags.text("--num-layers") == "2"
    assert launch.variables["SEEN"] == "shell"


def test_a_submitted_job_has_rays_variables(slime, monkeypatch):
    monkeypatch.chdir(slime)
    environment = json.dumps({"env_vars": {"PYTHONPATH": "/megatron:/env", "NUMBER": 1}})
    words = [
        "ray",
        "job",
        "submit",
        "--address",
        "x",
        f"--runtime-env-json={environment}",
        "--",
        "python3",
        "train.py",
        "--a",
    ]
    launch = read(words)
    assert launch.python_path == ["/megatron", "/env"]
    assert launch.variables["NUMBER"] == "1"
    assert launch.program == slime / "train.py"


def test_variables_before_the_program(slime):
    launch = read(["env", "NAME=value", "python3", "-u", f"{slime}/train.py"])
    assert launch.variables["NAME"] == "value"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["python3", "nowhere/train.py"], "no such file"),
        (["python3", "other.py"], "no train.py or train_async.py"),
        (["missing.sh"], "no such file"),
        (["ray", "job", "submit", "--runtime-env-json={", "--", "train.py"], "check its quotes"),
    ],
)
def test_a_command_that_cannot_be_read(words, message):
    with pytest.raises(ConfigError, match=message):
        read(words)


def test_a_script_starts_and_ends_nothing(script, slime, tmp_path):
    """Neither Ray nor Python, nor a program that no list names."""
    victim = tmp_path / "kept"
    victim.write_text("")
    launch = script(
        f"""#!/bin/bash
set -ex
pkill -9 python
ray stop --force
rm -rf {victim}
mkdir {tmp_path}/made
some-unknown-program --of the cluster
sed -i s/a/b/ {slime}/train.py
SCRIPT_DIR="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" &>/dev/null && pwd)"
source "${{SCRIPT_DIR}}/models/qwen3-4B.sh"
export HAS=$(seq 2 2 2)
ray start --head --num-gpus 8
ray job submit --runtime-env-json='{{"env_vars": {{"PYTHONPATH": "/root/Megatron-LM/"}}}}' \\
   -- python3 train.py "${{MODEL_ARGS[@]}}" --count ${{HAS}} | tee {tmp_path}/log
"""
    )
    assert victim.exists()
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "log").exists()
    assert launch.flags == (Flag("--num-layers", ("36",)), Flag("--count", ("2",)))
    assert launch.python_path == ["/root/Megatron-LM/"]
    assert launch.program == slime / "train.py"
    assert launch.variables["PATH"] == os.environ["PATH"]
    assert launch.variables["HAS"] == "2"


def test_a_python_with_its_path_does_not_run(script, slime):
    launch = script(f"{sys.executable} {slime}/train.py --a 1\n")
    assert launch.flags.text("--a") == "1"


def test_of_several_starts_the_first_is_taken_and_said(script):
    launch = script("python3 train.py --first\npython3 train.py --second\n")
    assert launch.flags.has("--first")
    assert "2 times" in launch.notes[0]


def test_variables_set_after_ray_has_started_do_not_reach_the_job(script):
    launch = script("ray start --head\nexport LATE=1\nray job submit -- python3 train.py\n")
    assert "LATE" not in launch.variables


def test_a_script_that_stops_before_its_command(script):
    with pytest.raises(ConfigError, match=r"ended before it started train\.py.*the folder of slime"):
        script('set -u\nSLIME="${SLIME:?the folder of slime}"\npython3 train.py\n')


def test_a_script_that_does_not_end(script, monkeypatch):
    monkeypatch.setattr(module, "_SCRIPT_S", 0.5)
    with pytest.raises(ConfigError, match="has not ended"):
        script("while true; do sleep 1; done\n")


def test_a_script_may_ask_for_versions(script):
    launch = script("set -e\npip install nothing\npython3 train.py --pip $(pip --version)\n")
    assert launch.flags.values("--pip")[0] == "pip"


ROUTER = """
class RouterArgs:
    def add_cli_args(parser):
        parser.add_argument("--policy", choices=["random", "manual"])
"""


@pytest.mark.parametrize("checks", ["", "1"])
def test_the_script_of_slime_init(slime, tmp_path, monkeypatch, checks):
    (tmp_path / "packages/sglang_router").mkdir(parents=True)
    (tmp_path / "packages/sglang_router/__init__.py").touch()
    (tmp_path / "packages/sglang_router/router_args.py").write_text(ROUTER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "packages"), os.environ.get("PYTHONPATH", ""))))
    write("my_env.py:MyEnv", "qwen3-4B", slime, tmp_path / "run")
    variables = {
        "SLIME": slime,
        "MEGATRON": "/megatron",
        "MODEL": "/model",
        "DATA": "/data",
        "CHECK": checks,
        "GPUS": "4",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    launch = read([str(tmp_path / "run/run.sh")])
    assert launch.program == slime / "train.py"
    assert launch.flags.values("--num-layers") == ("36",)
    assert launch.flags.text("--actor-num-gpus-per-node") == "4"
    assert launch.flags.text("--custom-generate-function-path") == "agentrl.adapt"
    assert launch.flags.text("--router-policy") == "manual", "the policy of the installed router"
    assert "/megatron" in launch.python_path
    assert not any("agentrl-launch" in folder for folder in launch.python_path), "the recorder's folder"
    assert launch.variables["CUDA_DEVICE_MAX_CONNECTIONS"] == "1", "the variables of the Ray job"


@needs_slime
@pytest.mark.parametrize("name", SLIMES_SCRIPTS)
def test_slimes_own_scripts(name):
    launch = captured(Path(SOURCE, "scripts", name))
    assert launch.program.parent == Path(SOURCE).resolve()
    assert launch.flags.number("--num-layers", 0) > 1
    assert launch.flags.text("--hf-checkpoint").startswith("/root/")
    assert any("Megatron-LM" in folder for folder in launch.python_path)
