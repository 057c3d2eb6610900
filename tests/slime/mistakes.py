"""A run with one mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl._util.findings import Finding
from agentrl.slime.check import arguments, check, read_command
from agentrl.slime.init import SCRIPT, write

ENV = '''
from agentrl import Env, tool


class Lookup(Env):
    @tool
    def look(self, what: str) -> str:
        """Look something up."""
        return what

    def score(self, trajectory) -> float:
        return 1.0
'''


MODEL_FILE = """MODEL_ARGS=(
   --group-query-attention --num-attention-heads 32 --num-query-groups 4 --kv-channels 128
   --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --vocab-size 151936
   --rotary-base 1000000 --moe-ffn-hidden-size 768 --num-experts 128
)
"""


EVAL = """eval:
  defaults: {n_samples_per_eval_prompt: 1}
  datasets:
    - {name: held_out, path: held_out.jsonl, input_key: prompt, label_key: label}
    - {name: other, path: other.jsonl, input_key: prompt, label_key: label}
"""


RECORDER = f"""#!{sys.executable}
import json, sys
open("record", "w").write(json.dumps(sys.argv[4:]))
"""


ROW = '{"prompt": "a", "label": "b", "metadata": {}}\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Callable[..., list[Finding]]:
    """Change one line of a good launch, and check what bash makes of it."""
    (tmp_path / "slime/scripts/models").mkdir(parents=True)
    write("my_env.py:Lookup", "qwen3-30B-A3B", tmp_path / "slime", tmp_path)
    text = (tmp_path / SCRIPT).read_text()
    held_out = '--eval-prompt-data held_out "${DATA}/held_out.jsonl"'
    files = {
        SCRIPT: text.replace(held_out, "--eval-config eval.yaml"),
        "eval.yaml": EVAL,
        "my_env.py": ENV,
        "train.jsonl": ROW * 3,
        "held_out.jsonl": ROW,
        "other.jsonl": ROW,
        "slime/scripts/models/qwen3-30B-A3B.sh": MODEL_FILE,
        "slime/rollout/__init__.py": "",
        "slime/rollout/filters.py": "def spread(args, samples):\n    return True\n",
        "bin/agentrl": RECORDER,
    }
    assert files[SCRIPT] != text
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "bin/agentrl").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "HOSTS", ())
    monkeypatch.setitem(sys.modules, "sglang_router.router_args", None)
    monkeypatch.setenv("ROUTER_POLICY", "consistent_hashing")
    monkeypatch.delenv("AGENTRL_CONFIG", raising=False)
    values = {"SLIME": "slime", "MEGATRON": "/megatron", "MODEL": "/models/m", "DATA": ".", "CHECK": "1", "GPUS": "8"}
    environment = {**os.environ, **values, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def checked(file: str = SCRIPT, old: str = "", new: str = "") -> list[Finding]:
        if old:
            content = Path(file).read_text()
            assert content.count(old) == 1, f"{old!r} is not once in {file}"
            Path(file).write_text(content.replace(old, new))
        subprocess.run(["bash", SCRIPT], check=True, capture_output=True, env=environment)
        return check(read_command(json.loads(Path("record").read_text())))

    return checked


def serious(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(str(found.level), found.message) for found in findings if found.level in ("error", "warning")]
