"""A typo is answered at once: nothing slow is imported before what was typed has been checked."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENV = """
from agentrl import Env, Task

class Capitals(Env):
    @classmethod
    def tasks(cls, config, split):
        yield Task(prompt=split, label="x")

    def score(self, trajectory):
        return 1.0
"""
TYPOS = [
    (("train", "my_env.py:Capitls", "--out", "r"), "did you mean Capitals?"),
    (("train", "my_env.py:Capitals", "--out", "r", "--data", "none.jsonl"), "none.jsonl: no such data file"),
    (("train", "my_env.py:Capitals", "--out", "r", "--warm-start", "none.jsonl"), "no such file of demonstrations"),
    (("train", "my_env.py:Capitals", "--out", "r", "--model", "runs/frist"), "there is no folder runs/frist"),
    (("train", "my_env.py:Capitals", "--out", "r", "--set", "group_sise=4"), "did you mean group_size?"),
    (("sft", "chat.jsonl", "--model", "runs/frist", "--out", "r"), "there is no folder runs/frist"),
    (("eval", "my_env.py:Capitals", "--model", "tny"), "did you mean tiny?"),
    (("serve", "--model", "tny"), "did you mean tiny?"),
]


@pytest.mark.parametrize(("words", "says"), TYPOS, ids=[" ".join(words) for words, _ in TYPOS])
def test_nothing_slow_is_imported_for_a_typo(tmp_path, words, says):
    (tmp_path / "my_env.py").write_text(ENV)
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    program = (
        "import sys\nfrom agentrl.cli import app\ncode = app(sys.argv[1:], standalone_mode=False)\n"
        "print(code, sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program, *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stderr.count("\n") == 1
    assert says in ran.stderr
    assert ran.stdout == "2 []\n"
