"""The flags that a rehearsal replaces, and the ones that it keeps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from agentrl.errors import ConfigError
from agentrl.rehearse.launch import Flags, SlimeLaunch
from agentrl.rehearse.packages import Packages
from agentrl.rehearse.plan import CPU_SWITCHES, Choices, make_layout, make_plan, sliced
from agentrl.rehearse.prepare import MARK, claim, is_elsewhere, prepare, python_path, variables
from agentrl.rehearse.standins import ENGINE, SITE

WORDS = (
    "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --hf-checkpoint {model} --ref-load /models/ref "
    "--save {save} --load {save} --save-interval 20 --prompt-data {data} --num-rollout 200 --rollout-batch-size 32 "
    "--n-samples-per-prompt 8 --global-batch-size 128 --rollout-max-response-len 6144 --rollout-max-context-len 8192 "
    "--max-tokens-per-gpu 9216 --lr 1e-6 --tensor-model-parallel-size 4 --sequence-parallel --attention-backend flash "
    "--sglang-mem-fraction-static 0.7 --custom-generate-function-path agentrl.adapt --num-layers 28 --hidden-size 1024"
)


def launch_of(words, folder=Path("/")):
    return SlimeLaunch(Path("/slime/train.py"), Flags.of(words), {}, folder)


def planned(words, **choices):
    return make_plan(launch_of(words.split()), Choices(model=Path("/out/model"), vocabulary=1024, **choices))


def values(plan):
    """The arguments as argparse reads them: the last value of each flag."""
    flags = Flags.of(plan.words)
    return {flag.name: " ".join(flag.values) for flag in flags}


def reasons(plan):
    return {item.flag: item for item in plan.replacements}


@pytest.fixture
def here(tmp_path):
    """A launch whose model and data are on this machine."""
    model = tmp_path / "model"
    model.mkdir()
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "vocab_size": 151936,
    }
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n')
    words = WORDS.format(model=model, save=tmp_path / "saved", data=tmp_path / "data.jsonl")
    return launch_of(words.split(), tmp_path)


def test_replaced_flags_follow_the_launchs_own_words():
    plan = planned(WORDS.format(model="/m", save="/s", data="/d"))
    assert plan.words[:4] == ["--actor-num-nodes", "1", "--actor-num-gpus-per-node", "8"]
    assert plan.words.index("--rollout-batch-size") < plan.words.index("--distributed-backend")
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-rollout", type=int)
    assert parser.parse_known_args(plan.words)[0].num_rollout == 2


def test_every_other_flag_is_kept():
    plan = planned(WORDS.format(model="/m", save="/s", data="/d"))
    for flag, value in {
        "--colocate": "",
        "--attention-backend": "flash",
        "--sglang-mem-fraction-static": "0.7",
        "--custom-generate-function-path": "agentrl.adapt",
        "--rollout-max-context-len": "8192",
    }.items():
        assert values(plan)[flag] == value
        assert flag not in reasons(plan)


def test_batches_are_small_and_the_steps_stay():
    plan = values(planned(WORDS.format(model="/m", save="/s", data="/d"), rollouts=3))
    assert (plan["--rollout-batch-size"], plan["--n-samples-per-prompt"], plan["--global-batch-size"]) == (
        "4",
        "4",
        "8",
    )
    assert plan["--num-rollout"] == "3"
    assert plan["--rollout-max-response-len"] == "256"


def test_steps_that_are_counted_by_the_launch():
    plan = values(
        planned("--rollout-batch-size 2 --n-samples-per-prompt 2 --num-steps-per-rollout 1 --global-batch-size 4")
    )
    assert (plan["--global-batch-size"], plan["--num-steps-per-rollout"], plan["--rollout-batch-size"]) == (
        "4",
        "1",
        "2",
    )


def test_full_keeps_batches_lengths_and_rollouts():
    plan = planned(WORDS.format(model="/m", save="/s", data="/d"), full=True, random=False)
    replaced = reasons(plan)
    for flag in ("--num-rollout", "--rollout-batch-size", "--rollout-max-response-len", "--lr", "--hf-checkpoint"):
        assert flag not in replaced
    assert replaced["--distributed-backend"].after == "gloo"


def test_a_replacement_has_both_values_and_a_reason():
    replaced = reasons(planned(WORDS.format(model="/m", save="/s", data="/d") + " --moe-permute-fusion"))
    assert replaced["--rollout-batch-size"].before == "32"
    assert replaced["--moe-permute-fusion"].after is None
    assert replaced["--no-rope-fusion"].before is None
    assert all(item.reason for item in replaced.values())


def test_flags_without_a_counterpart_are_left_out():
    plan = planned("--moe-permute-fusion --fp8-format e4m3 --optimizer-cpu-offload --moe-token-dispatcher-type flex")
    assert not {"--moe-permute-fusion", "--fp8-format", "e4m3", "--optimizer-cpu-offload"} & {*plan.words}
    assert values(plan)["--moe-token-dispatcher-type"] == "alltoall"


def test_switches_of_the_launch_are_not_repeated():
    plan = planned("--no-rope-fusion")
    assert plan.words.count("--no-rope-fusion") == 1
    assert {*CPU_SWITCHES} <= {*plan.words}


@pytest.mark.parametrize(
    ("words", "nodes", "gpus", "ranks", "engines"),
    [
        ("--actor-num-gpus-per-node 8 --colocate", 1, 2, 2, 2),
        ("--actor-num-gpus-per-node 1 --colocate", 1, 1, 1, 1),
        ("--actor-num-gpus-per-node 4 --rollout-num-gpus 4 --rollout-num-gpus-per-engine 2", 1, 4, 2, 2),
        ("--actor-num-nodes 8 --actor-num-gpus-per-node 8 --colocate", 2, 1, 2, 2),
        ("--actor-num-nodes 2 --rollout-num-gpus 1", 2, 2, 2, 1),
        ("--colocate --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4", 1, 4, 4, 4),
        ("--colocate --tensor-model-parallel-size 8 --context-parallel-size 2", 1, 4, 4, 4),
    ],
)
def test_layouts(words, nodes, gpus, ranks, engines):
    layout = make_layout(Flags.of(words.split()))
    assert (layout.nodes, layout.gpus, layout.ranks, layout.engines) == (nodes, gpus, ranks, engines)
    plan = values(planned(words))
    assert int(plan["--actor-num-nodes"]) * int(plan["--actor-num-gpus-per-node"]) == ranks


def test_parallelism_is_kept_as_far_as_a_laptop_goes():
    sizes = {"tensor-model": "8", "pipeline-model": "2", "context": "2", "expert-model": "8"}
    plan = values(planned(" ".join(f"--{name}-parallel-size {size}" for name, size in sizes.items())))
    assert [plan[f"--{name}-parallel-size"] for name in sizes] == ["2", "2", "1", "2"]


def test_a_filter_of_groups_is_called_but_cannot_stop_a_random_model():
    plan = planned("--dynamic-sampling-filter-path slime.filters.check")
    assert values(plan)["--dynamic-sampling-filter-path"] == "agentrl.rehearse.random_model.pass_in_turn"
    assert plan.variables["AGENTRL_REHEARSAL_FILTER"] == "slime.filters.check"


def test_tracking_stays_on_this_machine():
    assert values(planned("--use-wandb --wandb-mode online"))["--wandb-mode"] == "offline"


def test_a_large_vocabulary_bounds_a_micro_batch():
    plan = make_plan(launch_of(["--max-tokens-per-gpu", "9216"]), Choices(vocabulary=151936))
    assert int(values(plan)["--max-tokens-per-gpu"]) * 151936 * 4 < 400e6


def test_a_resumed_run_trains_one_more_rollout():
    plan = planned("--num-rollout 9", save=Path("/out/saved"))
    assert plan.saves
    resumed = Flags.of(plan.resumed(2))
    assert resumed.text("--num-rollout") == "3"
    assert resumed.has("--override-opt_param-scheduler")
    assert resumed.text("--load") == "/out/saved"


def test_slices_of_data():
    assert sliced("a.jsonl") == "a.jsonl@[0:8]"
    assert sliced("a.jsonl@[0:3]") == "a.jsonl@[0:3]"


# ---- what is made for a launch


def test_a_launch_of_this_machine(here, tmp_path):
    out = tmp_path / "out"
    prepared = prepare(here, out, rollouts=2, full=False)
    assert not is_elsewhere(here)
    assert prepared.weights == out / "model"
    assert (out / "model/tokenizer.json").exists()
    assert prepared.choices.save == tmp_path / "saved" / MARK, "the launch's own folder: can it be written to?"
    assert prepared.remove == [tmp_path / "saved" / MARK]
    assert prepared.remove_if_empty == [tmp_path / "saved"]
    assert dict(prepared.choices.sizes)["--hidden-size"] == "128"


def test_a_launch_of_another_machine(tmp_path):
    words = WORDS.format(model="/root/Qwen3-0.6B", save="/root/saved", data="/root/data.jsonl") + " --vocab-size 151936"
    words += " --num-attention-heads 16 --input-key prompt --eval-interval 5 --eval-prompt-data aime /root/aime.jsonl"
    launch = launch_of(words.split(), tmp_path)
    prepared = prepare(launch, tmp_path / "out", rollouts=2, full=False)
    plan = make_plan(launch, prepared.choices)
    assert values(plan)["--vocab-size"] == "1024"
    assert values(plan)["--save"] == str(tmp_path / "out/checkpoints")
    rows = [json.loads(line) for line in Path(values(plan)["--prompt-data"]).read_text().splitlines()]
    assert rows[0]["prompt"]
    assert values(plan)["--eval-prompt-data"].startswith("aime ")
    for flag in ("--hf-checkpoint", "--prompt-data", "--eval-prompt-data", "--save"):
        assert "not on this machine" in reasons(plan)[flag].reason


@pytest.mark.parametrize("is_here", [True, False])
def test_folders_with_an_apostrophe_and_a_space(here, tmp_path, is_here):
    place = tmp_path / "a friend's folder"
    place.mkdir()
    (place / "held out.jsonl").touch()
    (place / "eval.yaml").write_text(yaml.safe_dump({"datasets": [{"name": "a", "path": "a.jsonl"}]}))
    words = ["--eval-prompt-data", "a", str(place / "held out.jsonl"), "--eval-config", str(place / "eval.yaml")]
    flags = Flags.of([*here.flags.words(), *words])
    if not is_here:
        flags = Flags.of(
            [*flags.words(), "--hf-checkpoint", "/m", "--prompt-data", "/d 1", "/d 2", "--num-layers", "2"]
        )
        flags = Flags.of([*flags.words(), "--num-attention-heads", "4", "--hidden-size", "64"])
    launch = SlimeLaunch(here.program, flags, {}, here.folder)
    plan = Flags.of(make_plan(launch, prepare(launch, place / "an out", rollouts=1, full=False).choices).words)
    assert plan.text("--hf-checkpoint") == str(place / "an out/model")
    assert len(plan.values("--eval-prompt-data")) == 2
    assert plan.values("--eval-prompt-data")[1].startswith(str(place))
    assert plan.values("--eval-config") == (str(place / "an out/data/evaluation.yaml"),)
    if not is_here:
        assert [Path(file).exists() for file in plan.values("--prompt-data")] == [True, True]


@pytest.mark.parametrize(
    ("words", "mode"),
    [("--colocate", "abort"), ("--pause-generation-mode in_place", "abort"), ("--fully-async", "")],
)
def test_miles_pauses_in_the_way_of_agentrls_engine(tmp_path, words, mode):
    file = tmp_path / "miles/utils/arguments.py"
    file.parent.mkdir(parents=True)
    launch = SlimeLaunch(tmp_path / "train.py", Flags.of(words.split()), {}, tmp_path)
    flag = "--pause-generation-mode"
    file.write_text("")  # an older miles, without the flag
    assert Flags.of(make_plan(launch, Choices()).words).text(flag) == launch.flags.text(flag)
    file.write_text(f'parser.add_argument("{flag}")')
    assert Flags.of(make_plan(launch, Choices()).words).text(flag) == mode


def test_a_misspelt_model_folder_is_no_launch_of_another_machine(here, tmp_path):
    flags = Flags.of([*here.flags.words(), "--hf-checkpoint", str(tmp_path / "modle")])
    launch = SlimeLaunch(here.program, flags, {}, here.folder)
    with pytest.raises(ConfigError, match="no such folder, although other paths"):
        prepare(launch, tmp_path / "out", rollouts=2, full=False)


def test_a_row_that_slime_would_leave_out_is_named(here, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n{"a": \n')
    flags = Flags.of([*here.flags.words(), "--prompt-data", f"{tmp_path}/rows.jsonl@[0:9]"])
    prepared = prepare(SlimeLaunch(here.program, flags, {}, here.folder), tmp_path / "out", rollouts=2, full=False)
    (problem,) = (problem for problem in prepared.problems if "JSON" in problem)
    assert problem.startswith(f"arguments: {tmp_path}/rows.jsonl:4 is no JSON")


def test_full_needs_the_weights(tmp_path):
    launch = launch_of(["--hf-checkpoint", "/root/model"], tmp_path)
    with pytest.raises(ConfigError, match="--full trains its weights"):
        prepare(launch, tmp_path / "out", rollouts=2, full=True)


def test_a_file_of_evaluation_sets_is_shortened(here, tmp_path):
    (tmp_path / "eval.yaml").write_text(
        yaml.safe_dump({"eval": {"datasets": [{"name": "a", "path": "a.jsonl", "n_samples_per_eval_prompt": 16}]}})
    )
    flags = Flags.of([*here.flags.words(), "--eval-config", "eval.yaml"])
    prepared = prepare(SlimeLaunch(here.program, flags, {}, here.folder), tmp_path / "out", rollouts=2, full=False)
    copy = next(item.after for item in prepared.choices.data if item.flag == "--eval-config")
    assert yaml.safe_load(Path(copy).read_text())["eval"]["datasets"] == [
        {"name": "a", "path": "a.jsonl@[0:8]", "n_samples_per_eval_prompt": 2}
    ]


def test_only_a_rehearsals_folder_is_replaced(tmp_path):
    claim(tmp_path / "out")
    (tmp_path / "out/old").touch()
    claim(tmp_path / "out")
    assert not (tmp_path / "out/old").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        claim(tmp_path / "mine")
    with pytest.raises(ConfigError, match="cannot be written to"):
        claim(tmp_path / "mine/file/out")


def test_the_stand_ins_come_first_and_the_users_megatron_counts(tmp_path):
    packages = Packages(Path("/venv/python"), (Path("/wheel/megatron"),))
    launch = SlimeLaunch(Path("/slime/train.py"), Flags(), {"PYTHONPATH": "/mine"}, tmp_path)
    path = list(map(str, python_path(launch, packages)))
    assert path[:4] == [str(SITE), str(ENGINE), "/slime", "/mine"]
    assert path[-1] == "/wheel/megatron"
    (tmp_path / "megatron/training").mkdir(parents=True)
    own = SlimeLaunch(Path("/slime/train.py"), Flags(), {"PYTHONPATH": str(tmp_path)}, tmp_path)
    assert "/wheel/megatron" not in map(str, python_path(own, packages))


def test_the_users_ray_is_not_reached(tmp_path):
    launch = SlimeLaunch(Path("/slime/train.py"), Flags(), {"RAY_ADDRESS": "10.0.0.1:6379", "MINE": "1"}, tmp_path)
    env = variables(launch, Packages(Path("/p"), ()), tmp_path, random=True)
    assert "RAY_ADDRESS" not in env
    assert env["MINE"] == "1"
    assert env["AGENTRL_REHEARSAL"] == str(tmp_path)
