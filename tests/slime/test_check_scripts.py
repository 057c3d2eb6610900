"""No false alarm on the commands of slime's own launch scripts, as bash makes them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl._util.findings import Finding
from agentrl.slime.check import TrainCommand, arguments, check, read_command

SOURCE = os.environ.get("SLIME_SRC", "")
pytestmark = pytest.mark.skipif(
    not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these tests"
)
RECORDER = """#!/bin/bash
for word in "$@"; do
   case "$word" in *train.py | *train_async.py) printf '%s\\0' "$@" > "$RECORD" ;; esac
done
"""
STAND_INS = ("ray", "python", "python3", "pkill", "sleep", "nvidia-smi", "mkdir", "ps", "ip", "ssh", "hostname")
"""Programs that only record their words, if these start train.py."""
HARMLESS = ("dirname", "basename", "grep", "seq", "tr", "wc", "awk", "sed", "head", "date", "env", "cat")
"""Of the machine's own programs, those that a script finds. No other is there."""
AGENTRL = (
    "--custom-generate-function-path agentrl.adapt --custom-config-path agentrl.yaml --rollout-max-context-len 40000 "
    "--custom-reward-post-process-path agentrl.slime.post_process_rewards --router-policy consistent_hashing"
)
ENV = "from agentrl import Env\n\n\nclass E(Env):\n    def step(self, action): ...\n"
EXPECTED = (
    "no such data file",  # slime's data is not here
    "counts the 0.0 of failed episodes as a difference",  # slime's own filter, of which agentrl says so on purpose
    "remove --multimodal-keys",
    "is not agentrl.adapt",
    "fully-async rollout under train.py",
    "slime reads .jsonl and .parquet only",
    "a micro-batch of its own",  # of the context that was added here
    "SGLang ends each turn after 128 tokens",
    "remove --sglang-reasoning-parser",
    "remove --sglang-tool-call-parser",
    "evaluation beside fully-async rollout",
    "drops the last",
    "a group of one has no advantage",  # scripts of supervised training
    "add --prompt-data",
    "slime never evaluates",  # true of run-qwen3-235B-A22B.sh
    "add --save FOLDER",  # true of five of them
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    for program in STAND_INS:
        (folder / program).write_text(RECORDER)
        (folder / program).chmod(0o755)
    for program in HARMLESS:
        (folder / program).symlink_to(shutil.which(program) or "/")
    return folder


def passed(script: Path, programs: Path, record: Path) -> list[str]:
    """The command with which a script starts train.py, after bash; empty where it does not get that far."""
    hosts = dict.fromkeys(("MASTER_ADDR", "WORKER_IP", "MLP_WORKER_0_HOST"), "127.0.0.1")
    environment = {
        **hosts,
        "PATH": str(programs),
        "RECORD": str(record),
        "HOME": "/",
        "BASE_FOLDER": "/",
        "BASE_DIR": "/",
    }
    bash = shutil.which("bash") or "/bin/bash"
    subprocess.run([bash, str(script)], cwd=SOURCE, env=environment, capture_output=True, check=False, timeout=30)
    return record.read_text().split("\0")[:-1] if record.exists() else []


def scripts() -> list[Path]:
    files = [file for part in ("scripts", "examples") for file in sorted(Path(SOURCE, part).rglob("run*.sh"))]
    return [file for file in files if re.search(r"\btrain(_async)?\.py", file.read_text())] if SOURCE else []


@pytest.mark.parametrize("script", scripts(), ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_slimes_own_scripts_raise_no_false_alarm(script, programs, tmp_path, monkeypatch):
    """Their commands, with agentrl's flags added."""
    command = read_command(passed(script, programs, tmp_path / "record"))
    if len([word for word in command.words if word.startswith("--")]) < 20:
        pytest.skip("bash reaches no train.py without the machine that the script is for, or with few of its flags")
    monkeypatch.setattr(arguments, "HOSTS", ())
    monkeypatch.setitem(sys.modules, "sglang_router.router_args", None)
    monkeypatch.chdir(tmp_path)
    Path("my_env.py").write_text(ENV)
    Path("agentrl.yaml").write_text("agentrl: {env: my_env.py:E}\n")
    adapted = TrainCommand((*command.words, *AGENTRL.split()), command.program, command.path)
    alarms = [finding for finding in check(adapted) if is_alarm(finding)]
    assert alarms == []


def is_alarm(finding: Finding) -> bool:
    return finding.level in ("error", "warning") and not any(known in finding.message for known in EXPECTED)
