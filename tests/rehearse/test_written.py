"""A launch is judged as it is written: a replaced flag must not heal a mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from agentrl.rehearse import written
from agentrl.rehearse.launch import Flags, SlimeLaunch
from agentrl.rehearse.plan import written_words
from agentrl.rehearse.prepare import prepare
from agentrl.slime.check.flags import Words, misspelt
from tests.rehearse.launch import write_model

SIZES = {
    "actor_num_gpus_per_node": 8,
    "actor_num_nodes": 1,
    "colocate": True,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "num_attention_heads": 16,
    "num_experts": None,
    "num_gpus_per_node": 8,
    "pipeline_model_parallel_size": 1,
    "rollout_num_gpus": 8,
    "rollout_num_gpus_per_engine": 1,
    "world_size": 8,
}


def sizes(gpus=None, **changes):
    return [*written.bad_sizes(Namespace(**{**SIZES, **changes}), gpus)]


def test_sizes_that_fit():
    assert sizes(8) == sizes() == []
    assert sizes(8, actor_num_nodes=4, rollout_num_gpus=32, world_size=32) == []
    assert sizes(8, colocate=False, rollout_num_gpus=64, actor_num_gpus_per_node=8) == [], "a job of several nodes"
    assert sizes(rollout_num_gpus_per_engine=8, sglang_enable_dp_attention=True, sglang_dp_size=8) == []
    assert sizes(num_experts=8, expert_model_parallel_size=8) == []


@pytest.mark.parametrize(
    ("gpus", "changes", "problem"),
    [
        (4, {}, "placement: the job asks for 8 GPUs, but `ray start` names --num-gpus 4"),
        (4, {"colocate": False, "actor_num_gpus_per_node": 4, "rollout_num_gpus": 4}, "placement: the job asks for 8"),
        (
            4,
            {"actor_num_nodes": 2, "rollout_num_gpus": 16, "world_size": 16},
            "placement: the job asks for 8 GPUs on a",
        ),
        (8, {"rollout_num_gpus_per_engine": 3}, "engines: --rollout-num-gpus 8 is no multiple of"),
        (
            8,
            {"num_attention_heads": 14, "rollout_num_gpus_per_engine": 4},
            "engines: .* 14 attention heads over 4 GPUs",
        ),
        (8, {"num_experts": 8, "expert_model_parallel_size": 16}, "actors: 8 trainers are no multiple of 16"),
    ],
)
def test_sizes_that_do_not_fit(gpus, changes, problem):
    lines = sizes(gpus, **changes)
    assert re.match(problem, lines[0]), lines


def test_flags_of_sglang_are_known():
    words = [
        "--sglang-mem-fraction-static",
        ".7",
        "--sglang-moe-a2a-backend",
        "deepep",
        "--sglang-mem-fraction-statik",
        ".7",
    ]
    flags = frozenset(written.unseen_flags(Namespace(debug_train_only=False), words))
    (finding,) = misspelt(Words(words), flags)
    assert "did you mean --sglang-mem-fraction-static?" in finding.message
    without_engines = frozenset(written.unseen_flags(Namespace(debug_train_only=True), [*words, "--router-policy=x"]))
    assert {"--sglang-mem-fraction-statik", "--router-policy"} <= without_engines


def test_only_a_gpus_kernels_are_replaced():
    flags = Flags.of(
        ["--hf-checkpoint", "m", "--moe-permute-fusion", "--mtp-num-layers", "1", "--rollout-batch-size", "32"]
    )
    words = written_words(flags, Path("/a model"), ())
    assert "--moe-permute-fusion" not in words
    assert {"--mtp-num-layers", "32", "/a model"} <= {*words}


@pytest.fixture
def launch(tmp_path):
    write_model(tmp_path / "model", "qwen3-0.6B")
    (tmp_path / "data.jsonl").touch()

    def make(words):
        words = f"--hf-checkpoint {tmp_path}/model --prompt-data {tmp_path}/data.jsonl --save s {words}"
        return SlimeLaunch(Path("/slime/train.py"), Flags.of(words.split()), {}, tmp_path)

    return make


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--ref-load model --load s/", None),
        ("--ref-load nowhere", "--ref-load nowhere"),
        ("--ref-load model --load other", "--load other"),
        ("--load s", "--load s"),
    ],
)
def test_weights_that_are_not_here(launch, tmp_path, words, flag):
    problems = prepare(launch(words), tmp_path / "out", rollouts=1, full=False).problems
    assert [problem.partition(": no such folder")[0] for problem in problems] == (
        [f"arguments: {flag}"] if flag else []
    )


def test_the_models_own_sizes_are_judged(launch, tmp_path):
    prepared = prepare(launch("--ref-load model"), tmp_path / "out", rollouts=1, full=False)
    folder = Path(Flags.of(prepared.written).text("--hf-checkpoint"))
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 28
    assert json.loads((tmp_path / "out/model/config.json").read_text())["num_hidden_layers"] == 2


def test_a_number_that_yaml_reads_as_text():
    (problem,) = written.numbers_read_as_text({"lr": "1e-6", "eps": 1e-6, "seed": 3, "name": "e1"})
    assert problem.endswith("write lr: 1.0e-6")


def test_without_slime_only_agentrls_rules_judge(tmp_path):
    words = ["train.py", "--rollout-batch-size", "8", "--n-samples-per-prompt", "8", "--global-batch-size", "512"]
    report = tmp_path / "report.txt"
    subprocess.run([sys.executable, "-m", written.__name__, report, "", *words], check=True, cwd=tmp_path)
    (problem,) = report.read_text().splitlines()
    assert problem.startswith("arguments: --global-batch-size 512 is more than the 64 episodes of a rollout")
    agentrl = ["--custom-generate-function-path", "agentrl.adapt", "--apply-chat-template"]
    subprocess.run([sys.executable, "-m", written.__name__, report, "", *words, *agentrl], check=True, cwd=tmp_path)
    assert len(report.read_text().splitlines()) > 1
