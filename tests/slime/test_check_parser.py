"""Where slime is installed its own parser builds the namespace, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from agentrl._util.findings import Report
from agentrl.errors import ConfigError
from agentrl.slime.check import arguments, check, read_command
from agentrl.slime.check.arguments import read
from agentrl.slime.init import write

SLIME = """
import argparse, dataclasses, logging, os, sys

print("slime says much")


@dataclasses.dataclass
class EvalDatasetConfig:
    name: str
    path: str
    input_key: str = "question"


def parse_args(add_custom_arguments=None):
    servers = argparse.ArgumentParser(add_help=False)
    servers.add_argument("--sglang-mem-fraction-static", type=float)
    servers.parse_known_args()
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--rollout-batch-size", type=int, required=True)
    parser.add_argument("--eval-config")
    parser.add_argument("--train-env", default=os.environ.get("PYTHONPATH"))
    parser.add_argument("--object", default=object())
    args, _ = parser.parse_known_args()
    args.router_policy = "cache_aware"
    args.eval_datasets = [EvalDatasetConfig("held_out", args.eval_config)] if args.eval_config else []
    assert args.rollout_batch_size != 13, "13 brings bad luck"
    if args.rollout_batch_size == 14:
        raise RuntimeError("No CUDA GPUs are available")
    if args.rollout_batch_size == 15:
        os._exit(3)
    if args.rollout_batch_size == 16:
        import megatron_that_is_not_there
    return args
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A checkout of a slime that is small, and nothing of it on this process's path."""
    for name, content in {
        "slime/__init__.py": "",
        "slime/utils/__init__.py": "",
        "slime/utils/arguments.py": SLIME,
    }.items():
        file = tmp_path / "checkout" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*flags: object) -> list[str]:
    return ["python3", "checkout/train.py", *map(str, flags)]


@pytest.mark.thorough
def test_its_namespace_is_taken(folder):
    command = read_command(words("--rollout-batch-size", 4, "--eval-config", "e.yaml", "--sglang-mem-fraction", "0.7"))
    reading = read(command, {"mine": 1})
    assert (reading.exact, reading.findings) == (True, [])
    assert (reading.args.rollout_batch_size, reading.args.router_policy) == (4, "cache_aware")
    assert reading.args.eval_datasets == [{"name": "held_out", "path": "e.yaml", "input_key": "question"}]
    assert reading.args.train_env.startswith(str(folder / "checkout"))


@pytest.mark.thorough
def test_its_eval_config_is_checked():
    found = check(read_command(words("--rollout-batch-size", 4, "--eval-config", "e.jsonl")))
    assert any(f.message.startswith("e.jsonl: no such data file") for f in found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flag", "said"), [("--rollout-batch-sizes", "did you mean --rollout-batch-size?"), ("--mine", "remove it")]
)
def test_a_flag_that_none_of_its_parsers_takes(flag, said):
    (found,) = read(read_command(words("--rollout-batch-size", 4, flag, 8)), {}).findings
    assert found.level == "warning"
    assert found.message == f"{flag} is no flag of slime's, which ignores it without a word; {said}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "level", "text"),
    [
        (("--rollout-batch-size", 13), "error", "slime refuses the command: AssertionError: 13 brings bad luck"),
        (
            ("--rollout-batch-size", "x"),
            "error",
            "train.py: error: argument --rollout-batch-size: invalid int value: 'x'",
        ),
        ((), "error", "the following arguments are required: --rollout-batch-size"),
        (("--rollout-batch-size", 15), "unchecked", "its process ended with 3"),
        (("--rollout-batch-size", 16), "unchecked", "No module named 'megatron_that_is_not_there'"),
    ],
)
def test_what_it_refuses_and_what_keeps_it_from_reading(flags, level, text):
    reading = read(read_command(words(*flags)), {})
    (found,) = [finding for finding in reading.findings if text in finding.message]
    assert (found.level, reading.exact) == (level, level == "error")
    assert reading.args.n_samples_per_prompt == 1, "read plainly"


@pytest.mark.thorough
def test_its_last_checks_may_need_a_gpu():
    reading = read(read_command(words("--rollout-batch-size", 14, "--mine", 1)), {})
    assert (reading.exact, reading.args.rollout_batch_size, reading.args.router_policy) == (True, 14, "cache_aware")
    misspelt, missing = reading.findings
    assert misspelt.message.startswith("--mine is no flag of slime's")
    assert (missing.level, missing.check) == ("unchecked", "Megatron's own checks")
    assert missing.message == "they need a GPU (RuntimeError: No CUDA GPUs are available)"


def test_it_is_given_up_after_a_while(monkeypatch):
    monkeypatch.setattr(arguments, "TIMEOUT_S", 0.0)
    (found,) = read(read_command(words("--rollout-batch-size", 4)), {}).findings
    assert "it did not finish within 0 s" in found.message


def test_without_slime_the_verdict_is_incomplete(folder, monkeypatch):
    monkeypatch.setattr(arguments, "HOSTS", ())
    found = check(read_command(words("--rollout-batch-size", 4)))
    assert "slime's own parser" in Report(found).summary().partition("; not checked: ")[2]
    assert any("slime is not installed here, nor on PYTHONPATH" in finding.message for finding in found)


@pytest.mark.thorough
def test_ray_tells_where_slime_is(folder):
    variables = {"PYTHONPATH": f"/megatron{os.pathsep}{folder / 'checkout'}"}
    line = [
        "ray",
        "job",
        "submit",
        f"--runtime-env-json={json.dumps({'env_vars': variables})}",
        "--",
        "python3",
        "train.py",
    ]
    command = read_command([*line, "--rollout-batch-size", "4"])
    assert command.path == (str(folder), "/megatron", str(folder / "checkout"))
    assert read(command, {}).exact
    line[3:4] = ["--runtime-env-json", "{'env_vars': 1}"]
    with pytest.raises(ConfigError, match="not a JSON object with `env_vars`"):
        read_command(line)


def test_the_program_is_found_behind_others():
    command = read_command(["ray", "job", "submit", "--", "python3", "-u", "a b/train_async.py", "--x", "train.py"])
    assert (command.program, command.words) == ("train_async.py", ("--x", "train.py"))
    assert read_command(["--x", "1"]).words == ("--x", "1")


def test_a_folder_of_that_name_is_no_slime(folder, monkeypatch):
    (folder / "miles/docs").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(arguments, "HOSTS", ("miles",))
    assert not read(read_command(["train.py", "--rollout-batch-size", "4"]), {}).exact
    assert arguments.host_of(()) is None


STAND_INS = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        for name in ("pp-size", "dp-size", "ep-size"):
            parser.add_argument(f"--{name}", type=int, default=1)
        parser.add_argument("--mem-fraction-static", type=float)
""",
    "sglang_router/__init__.py": "",
    "sglang_router/launch_router.py": """
class RouterArgs:
    @staticmethod
    def add_cli_args(parser, use_router_prefix, exclude_host_port):
        parser.add_argument("--router-policy", default="cache_aware")
""",
    "wandb/__init__.py": "",
}
"""What slime's parser asks of SGLang, which is not installed from a registry as a whole; and of wandb."""
MODEL = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
SLIME_SRC, MILES_SRC = os.environ.get("SLIME_SRC", ""), os.environ.get("MILES_SRC", "")


@pytest.mark.skipif(
    not (SLIME_SRC and MILES_SRC), reason="SLIME_SRC and MILES_SRC are not set: slime's parser needs Megatron"
)
def test_slimes_and_megatrons_own_parsers_read_what_init_writes(folder, monkeypatch):
    """With one flag more, which is misspelt. Megatron's checks may ask for a GPU, and then have not been made."""
    for name in ("torch", "triton", "six"):
        pytest.importorskip(name, reason="Megatron needs it")
    for name, content in STAND_INS.items():
        (folder / "stand_ins" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "stand_ins" / name).write_text(content)
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    path = [str(folder / "stand_ins"), MILES_SRC, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    write("my_env.py:E", "qwen3-4B", Path(SLIME_SRC), folder / "run")
    record = "agentrl() { printf '%s\\0' \"${@:4}\" > record; }; export -f agentrl; bash run/run.sh"
    variables = {"SLIME": SLIME_SRC, "MEGATRON": MILES_SRC, "MODEL": "model", "DATA": ".", "CHECK": "1"}
    subprocess.run(["bash", "-c", record], check=True, env={**os.environ, **variables})
    line = (folder / "record").read_text().split("\0")[:-1]
    reading = read(read_command([*line, "--num-rollouts", "1"]), {"agentrl": {}})
    found = [finding.message for finding in reading.findings if finding.check != "Megatron's own checks"]
    assert found == [
        "--num-rollouts is no flag of slime's, which ignores it without a word; did you mean --num-rollout?"
    ]
    args = reading.args
    assert (args.num_layers, args.router_policy, args.colocate) == (36, "consistent_hashing", True)
    assert args.agentrl["env"] == "my_env.py:E"
    assert [dataset["name"] for dataset in args.eval_datasets] == ["held_out"]
