"""Bad input: one line that names the thing and the remedy, exit code 2, and nothing written."""

from __future__ import annotations

import json

import pytest
import yaml

from agentrl.models import load_tokenizer

TRAIN = ("--data", "tasks.jsonl", "--out", "run")


@pytest.fixture
def bad(folder):
    """What is wrong, in files beside my_env.py and tasks.jsonl."""
    (folder / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (folder / "untyped.py").write_text(
        "from agentrl import Env, tool\n\nclass Untyped(Env):\n    @tool\n    def f(self, x):\n        return x\n"
    )
    (folder / "syntax.py").write_text("def broken(:\n")
    (folder / "file").write_text("not a folder")
    (folder / "old").mkdir()
    (folder / "old" / "config.yaml").write_text("env: my_env.py:Capitals\ndata: tasks.jsonl\nout: old\n")
    (folder / "typo.yaml").write_text("stepz: 3\n")
    load_tokenizer("tiny").save_pretrained(folder / "base")
    (folder / "base" / "chat_template.jinja").unlink()
    (folder / "base" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return folder


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("train", "missing.py:X", *TRAIN), "missing.py: no such file"),
        (("train", "my_env.py:Nope", *TRAIN), "my_env.py has no 'Nope'; it has: Capitals, Unreliable, Buggy, Unshared"),
        (("train", "no.such:X", *TRAIN), "no module 'no.such'; install it, or put it on PYTHONPATH"),
        (("train", "syntax.py:X", *TRAIN), "syntax.py:1: "),
        (("train", "my_env.py:gold", *TRAIN), "not a subclass of agentrl.Env"),
        (("train", "my_env.py:Empty", *TRAIN), "Empty has neither tools nor a step nor a score: "),
        (("train", "untyped.py:Untyped", *TRAIN), "tool Untyped.f: argument 'x' has no type hint; write `x: str`"),
        (("train", "my_env.py:Capitals", "--data", "broken.jsonl", "--out", "run"), "broken.jsonl:2: not valid JSON"),
        (("train", "my_env.py:Capitals", "--data", "none.jsonl", "--out", "run"), "none.jsonl: no such data file"),
        (("train", "my_env.py:Capitals", *TRAIN, "--eval-data", "broken.jsonl"), "broken.jsonl:2: "),
        (("train", "my_env.py:Capitals", *TRAIN, "--warm-start", "none.jsonl"), "none.jsonl: no such file"),
        (
            ("train", "my_env.py:Capitals", *TRAIN, "--warm-start", "tasks.jsonl"),
            "tasks.jsonl:1: neither chat (",
        ),
        (("train", "my_env.py:Capitals", *TRAIN, "--model", "gpt-9"), "unknown model 'gpt-9'; use tiny, "),
        (
            ("train", "my_env.py:Capitals", *TRAIN, "--set", "teacher=gpt-9"),
            "teacher: unknown model 'gpt-9'; use tiny, ",
        ),
        (("train", "my_env.py:Capitals", *TRAIN, "--model", "base"), "base has no chat template: put "),
        (("train", "my_env.py:Capitals", *TRAIN, "--set", "nope=1"), "unknown key nope; the keys are env, "),
        (
            ("train", "my_env.py:Capitals", *TRAIN, "--set", "limits.turn=1"),
            "unknown key limits.turn; did you mean turns?",
        ),
        (("train", "my_env.py:Capitals", *TRAIN, "--set", "nope"), "--set nope: write key=value"),
        (("train", "my_env.py:Capitals", *TRAIN, "--config", "typo.yaml"), "unknown key stepz; did you mean steps?"),
        (("train", "my_env.py:Capitals", *TRAIN, "--config", "none.yaml"), "none.yaml: no such file"),
        (("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "old"), "--out old holds another run; add "),
        (
            ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "file"),
            "--out file is not an empty",
        ),
        (
            ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "file/run"),
            "--out file/run cannot be made (Not a directory); choose a folder that you may write",
        ),
        (("train",), "missing ENV, --out"),
        (("train", "--resume"), "--resume: name the run's folder with --out"),
        (("train", "--resume", "--out", "run"), "--resume: run holds no run; leave --resume out"),
        (("train", "--resume", "--out", "old", "--seed", "7"), "--resume: seed was 0 and is now 7; restore it"),
        (("eval", "my_env.py:Nope", "--model", "tiny", "--data", "tasks.jsonl"), "it has: Capitals"),
        (("eval", "my_env.py:Capitals", "--model", "nope", "--data", "tasks.jsonl"), "unknown model 'nope'"),
        (("eval", "my_env.py:Capitals", "--model", "old", "--data", "tasks.jsonl"), "old holds a run without a checkp"),
        (("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "broken.jsonl"), "broken.jsonl:2: "),
        (
            ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl", "--out", "tasks.jsonl"),
            "--out tasks.jsonl is the data file itself; name another",
        ),
        (
            ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl", "--out", "file/x/y.jsonl"),
            "cannot be written to; name another file",
        ),
        (
            ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl", "--samples", "2"),
            "--samples 2: all samples are equal at --temperature 0; add --temperature 1",
        ),
        (("train", "my_env.py:Unshared", *TRAIN), "no engine answers; start one; run the command again"),
        (
            ("eval", "my_env.py:Unshared", "--model", "tiny", "--data", "tasks.jsonl"),
            "no engine answers; start one; nothing was written",
        ),
        (
            ("play", "my_env.py:Unshared", "--data", "tasks.jsonl", "--player", "my_env.py:gold"),
            "no engine answers; start one; nothing was written",
        ),
        (("serve", "--model", "nope"), "unknown model 'nope'"),
        (("serve", "--model", "base"), "base has no chat template"),
        (("play", "my_env.py:Capitals", "--data", "tasks.jsonl", "--player", "my_env.py:nope"), "has no 'nope'"),
        (
            ("play", "my_env.py:Capitals", "--data", "tasks.jsonl", "--player", "my_env.py:FACTS"),
            "it must be a generator function",
        ),
        (
            ("play", "my_env.py:Capitals", "--data", "tasks.jsonl", "--player", "my_env.py:no_generator"),
            "--player my_env.py:no_generator returned str; it must yield its turns",
        ),
        (
            ("check", "my_env.py:Capitals", "--data", "tasks.jsonl", "--gold", "my_env.py:of_seats"),
            "my_env.py:of_seats does not take a Task alone; the player here must be a generator function",
        ),
        (
            ("play", "my_env.py:Capitals", "--data", "tasks.jsonl", "--player", "my_env.py:gold", "--out", "old"),
            "--out old is a folder; name a file",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input(bad, agentrl, command, message):
    before = sorted(path for path in bad.rglob("*") if "__pycache__" not in path.parts)
    assert agentrl(*command) == 2
    assert agentrl.stderr.startswith("error: ")
    assert message in agentrl.stderr
    assert agentrl.stderr.count("\n") == 1
    assert agentrl.stdout == ""
    assert sorted(path for path in bad.rglob("*") if "__pycache__" not in path.parts) == before
    assert yaml.safe_load((bad / "old" / "config.yaml").read_text())["out"] == "old"


@pytest.mark.thorough
def test_it_is_one_line_in_a_process_of_its_own(start):
    process = start("eval", "missing.py:X", "--model", "tiny", "--data", "tasks.jsonl")
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr.startswith("error: missing.py: no such file")
    assert stderr.count("\n") == 1
