"""examples/slime/search_r1: its settings, and that bash and the check take it. And its slices.py."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/slime/search_r1"
slices = load_object(f"{EXAMPLE}/slices.py:slices")
SOURCES = ("nq", "nq", "nq", "triviaqa", "bamboogle", "bamboogle")
RAY = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""
AGENTRL = f"""#!/bin/sh
exec {sys.executable} -m agentrl "$@"
"""
PYTHON = f"""#!/bin/sh
exec {sys.executable} "$@"
"""
PAPER = {
    "--label-key": "reward_model",
    "--rollout-batch-size": "512",
    "--global-batch-size": "256",
    "--num-rollout": "500",
    "--rollout-temperature": "1",
    "--rollout-top-p": "1",
    "--lr": "1e-6",
    "--lr-warmup-fraction": "0.285",
    "--kl-loss-coef": "0.001",
    "--kl-loss-type": "low_var_kl",
    "--rollout-max-response-len": "4096",
    "--eps-clip": "0.2",
    "--eps-clip-high": "0.2",
    "--eval-temperature": "0",
}
OF_ESTIMATOR = {
    "grpo": {"--advantage-estimator": "grpo", "--n-samples-per-prompt": "5"},
    "ppo": {"--advantage-estimator": "ppo", "--n-samples-per-prompt": "1", "--value-clip": "0.5"},
}


def row(source: str, index: int) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": "Who?"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
        "extra_info": {"split": "test", "index": index},
    }


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the script asks for, published rows as Parquet, `agentrl`, and a `ray` that only records."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow writes the rows: pip install pyarrow")
    table = pytest.importorskip("pyarrow").Table.from_pylist([row(s, i) for i, s in enumerate(SOURCES)])
    for split in ("train", "test"):
        parquet.write_table(table, tmp_path / f"{split}.parquet")
    models, bin_ = tmp_path / "slime/scripts/models", tmp_path / "bin"
    models.mkdir(parents=True)
    bin_.mkdir()
    (models / "qwen2.5-3B.sh").write_text("MODEL_ARGS=(\n   --num-layers 2\n)\n")
    shutil.copytree(EXAMPLE, tmp_path / "run")
    for name, text in (("ray", RAY), ("agentrl", AGENTRL), ("python3", PYTHON)):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    for name, value in {
        "SLIME": tmp_path / "slime",
        "MEGATRON": "/megatron",
        "MODEL": "/models/it",
        "DATA": tmp_path,
        "RECORD": tmp_path / "record",
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "envs", "sandbox")),
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in (
        "CHECK",
        "SAVE",
        "TRAIN",
        "TEST",
        "NODES",
        "FULLY_ASYNC",
        "MODEL_FILE",
        "WANDB_PROJECT",
        "TENSORBOARD_DIR",
        "AGENTRL_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(world: Path, said: str = "", **variables: str) -> list[str]:
    """Run the script, whose check prints this; the command that `ray job submit` gets."""
    environment = {**os.environ, **variables}
    done = subprocess.run(["bash", "run/run.sh"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
    stop, start, submit = (json.loads(line) for line in (world / "record").read_text().splitlines()[-3:])
    assert (stop[0], start[0], submit[0]) == ("stop", "start", "job")
    return submit[submit.index("--") + 1 :]


def values(command: list[str], flag: str) -> list[str]:
    (place,) = [i for i, word in enumerate(command) if word == flag]
    behind = command[place + 1 :]
    return behind[: next((i for i, word in enumerate(behind) if word.startswith("--")), None)]


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", ["grpo", "ppo"])
def test_bash_runs_it_with_the_papers_settings(world, estimator):
    test = world / "test.parquet"
    sets = ["nq", f"{test}@[0:3]", "triviaqa", f"{test}@[3:4]", "bamboogle", f"{test}@[4:6]"]
    said = "0 errors, 0 warnings; not checked: slime's own parser"
    if estimator == "grpo":  # the real ones take seconds, and are the same
        said = ""
        (world / "bin/agentrl").write_text("#!/bin/sh\n")
        (world / "bin/python3").write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.join(sets)}\n")
    command = started(world, said, ESTIMATOR=estimator)
    for flag, value in {**PAPER, **OF_ESTIMATOR[estimator]}.items():
        assert values(command, flag) == [value], flag
    flags = [word for word in command if word.startswith("--")]
    assert len(flags) == len(set(flags)), "no flag is given twice"
    assert values(command, "--eval-prompt-data") == sets
    assert "--use-kl-loss" in command
    assert "--kl-coef" not in command
    settings = yaml.safe_load((world / "run/agentrl.yaml").read_text())["agentrl"]
    assert settings["env"] == "agentrl_envs.search_r1:SearchR1"
    assert settings["limits"] == {"turns": 4, "observation_tokens": 500}
    assert (settings["env_config"]["topk"], settings["env_config"]["response_tokens"]) == (3, 500)


def test_the_critic_has_settings_and_checkpoints_of_its_own(world):
    """Else it would save into the actor's folder, and go on from the actor's weights."""
    saved = world / "run/checkpoints"
    (world / "bin/agentrl").write_text("#!/bin/sh\n")  # says nothing, and finds nothing wrong

    def critic() -> dict[str, Any]:
        (file,) = values(started(world, ESTIMATOR="ppo"), "--megatron-config-path")
        (role,) = yaml.safe_load(Path(file).read_text())["megatron"]
        assert role["role"] == "critic"
        return role["overrides"]

    own = {"lr": 1e-5, "lr_warmup_fraction": 0.015, "save": f"{saved}/critic"}
    assert critic() == {**own, "load": "/models/it_torch_dist"}
    (saved / "critic").mkdir()
    (saved / "critic/latest_checkpointed_iteration.txt").write_text("99")
    assert critic() == {**own, "load": f"{saved}/critic"}


@pytest.mark.thorough
def test_a_data_set_that_cannot_be_split_ends_the_script(world):
    (world / "test.parquet").unlink()
    done = subprocess.run(["bash", "run/run.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "test.parquet: no such data file" in done.stderr


@pytest.mark.thorough
def test_an_unknown_estimator_ends_the_script(world):
    environment = {**os.environ, "ESTIMATOR": "gspo"}
    done = subprocess.run(["bash", "run/run.sh"], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "ESTIMATOR gspo: write grpo or ppo")


def test_it_starts_and_ends_as_what_init_writes():
    """What is not of the recipe is init's: the same lines in the same order."""
    own = (EXAMPLE / "run.sh").read_text().splitlines()
    common = (ROOT / "examples/slime/fact_search/run.sh").read_text().splitlines()
    place = [line.startswith("PROGRAM=train.py") for line in common].index(True)
    rest = iter(own)
    missing = [line for line in common[place:] if line not in rest]
    assert missing == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_slices(tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    write(file, [row(source, i) for i, source in enumerate(SOURCES)])
    assert slices(file, "data_source") == [
        ("nq", f"{file}@[0:3]"),
        ("triviaqa", f"{file}@[3:4]"),
        ("bamboogle", f"{file}@[4:6]"),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("sources", "key", "message"),
    [
        (["nq", "hotpotqa", "nq"], "data_source", "rows with data_source nq do not stand together; sort the file by"),
        (["nq"], "source", "no (column|key) 'source'"),
        (["nq", None], "data_source", "row 2: data_source is None; it must be a name without spaces"),
        (["my set"], "data_source", "row 1: data_source is 'my set'; it must be a name without spaces"),
        ([], "data_source", "no row in it|no column"),
    ],
)
def test_slices_refuses(tmp_path, kind, sources, key, message):
    file = tmp_path / f"rows.{kind}"
    write(file, [row(source, i) for i, source in enumerate(sources)])
    with pytest.raises(ConfigError, match=message):
        slices(file, key)


def test_slices_refuses_what_is_no_parquet(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow reads Parquet: pip install pyarrow")
    (tmp_path / "rows.parquet").write_text("{}")
    with pytest.raises(ConfigError, match="not a readable Parquet file"):
        slices(tmp_path / "rows.parquet", "data_source")
    with pytest.raises(ConfigError, match="no such data file"):
        slices(tmp_path / "none.parquet", "data_source")


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow writes the rows: pip install pyarrow")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), file)
