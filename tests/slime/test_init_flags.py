"""The flags that `init` writes and `check` reads, against the parsers that take them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.slime.check.flags import Words, plain

SOURCE = os.environ.get("SLIME_SRC", "")
needs_slime = pytest.mark.skipif(
    not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these"
)
CHECK = Path(__file__).parents[2] / "agentrl/slime/check"
SCRIPTS = [file.read_text() for file in sorted((CHECK.parents[2] / "examples/slime").rglob("run.sh"))]


def written(text: str) -> list[str]:
    """Words of the flags that a script gives to train.py; variables are kept as they are written."""
    body = text[text.index("AGENT_ARGS=(") : text.index("export PYTHONPATH")]
    body = re.sub(r"\$\(\(.*?\)\)|\$\{(TRAIN_)?(GPUS|NODES)\}", "4", body.replace("${ESTIMATOR}", "ppo"))
    body = re.sub(r"[A-Z]+_ARGS\+?=\(", "\n", body.replace("FULLY_ASYNC trains", ""))
    lines = [re.sub(r"   #.*|\) ;;.*", "", line).strip(" )") for line in body.splitlines()]
    return [word.strip('"()') for line in lines if line.startswith("--") for word in line.split()]


STAND_INS = """
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
"""
PARSE = f"""{STAND_INS}
from slime.utils.arguments import get_slime_extra_args_provider

parser = argparse.ArgumentParser(allow_abbrev=False)
get_slime_extra_args_provider()(parser)
flags = {{o: [a.dest, a.default] for a in parser._actions for o in a.option_strings if o not in ("-h", "--help")}}
print(json.dumps([flags, [parser.parse_known_args(words)[1] for words in json.load(sys.stdin)]]))
"""


@pytest.fixture(scope="module")
def parsed() -> tuple[dict[str, Any], list[list[str]]]:
    """slime's own flags with their attributes and defaults, and what its parser leaves over of each script."""
    pytest.importorskip("torch", reason="slime needs torch")
    words = json.dumps([written(text) for text in SCRIPTS])
    done = subprocess.run(
        [sys.executable, "-c", PARSE, SOURCE], input=words, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    own, left_over = json.loads(done.stdout.splitlines()[-1])
    return own, left_over


@needs_slime
def test_slimes_own_parser_takes_what_init_writes(parsed):
    """What its parser leaves over belongs to Megatron's and SGLang's, spelt as slime's own scripts spell it."""
    own, left_over = parsed
    assert len(own) > 200
    assert not [words for words in left_over if words and not words[0].startswith("--")]
    theirs = {word for words in left_over for word in words if word.startswith("--")}
    spelt = "\n".join(file.read_text() for file in Path(SOURCE).rglob("*.sh"))
    spelt += Path(SOURCE, "docs/en/advanced/sglang-config.md").read_text()  # which names --router-policy
    spelt += "--override-opt_param-scheduler"  # of Megatron's megatron/training
    assert len(theirs) > 15
    assert not {flag for flag in theirs if not re.search(rf"{flag}\b(?!-)", spelt)}


ROLES = f"""{STAND_INS}
from slime.utils.arguments import parse_megatron_role_args

shared = argparse.Namespace(**json.load(sys.stdin))
print(json.dumps(vars(parse_megatron_role_args(shared, sys.argv[2], role="critic"))))
"""


@needs_slime
def test_slime_reads_the_critics_settings(tmp_path):
    """From the file that the script of Search-R1 writes under PPO."""
    pytest.importorskip("torch", reason="slime needs torch")
    text = (CHECK.parents[2] / "examples/slime/search_r1/run.sh").read_text()
    lines = text[text.index("CRITIC=") : text.index("\nfi", text.index("\nEND"))]
    given = {"PATH": os.environ["PATH"], "SAVE": f"{tmp_path}/saved", "REF": "/models/ref"}
    subprocess.run(["bash", "-euc", lines], check=True, env=given)
    shared = {"lr": 1e-6, "lr_warmup_fraction": 0.285, "load": "/a", "save": "/b", "kl_coef": 0.0, "use_kl_loss": True}
    command = [sys.executable, "-c", ROLES, SOURCE, f"{tmp_path}/saved/roles.yaml"]
    done = subprocess.run(command, input=json.dumps(shared), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    critic = json.loads(done.stdout.splitlines()[-1])
    assert (critic["lr"], critic["lr_warmup_fraction"]) == (1e-5, 0.015)
    assert (critic["load"], critic["save"]) == ("/models/ref", f"{tmp_path}/saved/critic")
    assert critic.keys() - shared.keys() <= {"use_opd", "custom_advantage_function_path"} | {
        "untie_embeddings_and_output_weights",
        "disable_param_buffers_cpu_backup",
    }, "each name in the file is one of slime's"


@needs_slime
def test_the_plain_reading_has_slimes_names_and_defaults(parsed):
    own, _ = parsed
    args, _ = plain(Words([]))
    ours = {dest: default for dest, default in own.values() if dest in args}
    assert len(ours) > 50
    ours["apply_chat_template_kwargs"] = None  # "{}" as text, which argparse reads
    ours["rollout_function_path"] = ours["data_source_path"] = None  # slime's own: nothing to look up
    assert {name: args[name] for name in ours} == ours


def test_what_the_rules_read_is_read_plainly():
    """Else it would be None for ever where slime is not installed."""
    source = "\n".join(file.read_text() for file in CHECK.glob("*.py"))
    read = set(re.findall(r"\bargs\.([a-z]\w+)", source)) - {"values", "functions", "update", "setdefault", "items"}
    assert len(read) > 50
    assert read - set(plain(Words([]))[0]) == {"eval_datasets"}, "which slime's parser alone makes"


MEGATRON = Path(os.environ.get("MILES_SRC", ""), "megatron")


@needs_slime
@pytest.mark.skipif(
    not MEGATRON.is_dir(), reason="MILES_SRC is not set: its wheel holds Megatron, whose flags are looked up"
)
def test_megatron_knows_the_rest(parsed):
    """As a literal of its parser, or as a field of a dataclass that its parser is made from."""
    source = "\n".join(file.read_text() for part in ("training", "core") for file in (MEGATRON / part).rglob("*.py"))
    flags = {word for text in SCRIPTS for word in written(text) if word.startswith("--")}
    theirs = {flag for flag in flags - parsed[0].keys() if not flag.startswith(("--sglang-", "--router-"))}
    assert len(theirs) > 15
    for flag in theirs:
        field = flag.removeprefix("--").replace("-", "_")
        assert re.search(rf"['\"]{flag}['\"]|^ +{field}: ", source, re.MULTILINE), flag
