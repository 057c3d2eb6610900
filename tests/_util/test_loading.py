"""Objects by path: whatever an import or `share` raises ends the run in one line that names the place."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl import ConfigError, Env, EnvFactory, InfraError, StepResult
from agentrl._util.loading import cause, load_object
from agentrl.env.factory import load_env

BAD = {
    "os.environ": ("import os\n\nos.environ['MISSING_KEY']\n", r"bad\.py:3: KeyError: 'MISSING_KEY'$"),
    "from": ("from json import nosuch\n", r"bad\.py:1: ImportError: cannot import name 'nosuch'"),
    "file": ("open('no/such/facts.jsonl')\n", r"bad\.py:1: FileNotFoundError: .*facts\.jsonl"),
    "exit": ("import sys\n\n\nsys.exit(2)\n", r"bad\.py:4: SystemExit: 2$"),
    "assert": ("assert False\n", r"bad\.py:1: AssertionError$"),
    "syntax": ("\ndef broken(:\n", r"bad\.py:2: invalid syntax"),
    "deep": ("import json\njson.loads('{')\n", r"bad\.py:2: JSONDecodeError: Expecting property name"),
    "lines": ("raise ValueError('one\\ntwo')\n", r"bad\.py:1: ValueError: one two$"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("as_module", [False, True])
def test_whatever_an_import_raises_is_one_line(tmp_path, monkeypatch, kind, as_module):
    source, says = BAD[kind]
    (tmp_path / "bad.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says) as caught:
        load_env("bad:X" if as_module else f"{tmp_path}/bad.py:X")
    assert "\n" not in str(caught.value)


def test_ctrl_c_in_an_import_is_no_error_of_it(tmp_path):
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_env(f"{tmp_path}/slow.py:X")


def test_the_bug_may_lie_in_a_neighbour(tmp_path, monkeypatch):
    (tmp_path / "neighbour_with_a_bug.py").write_text("\n\n1 / 0\n")
    (tmp_path / "good.py").write_text("import neighbour_with_a_bug\n")
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    with pytest.raises(ConfigError, match=r"neighbour_with_a_bug\.py:3: ZeroDivisionError: division by zero"):
        load_env(f"{tmp_path}/good.py:X")


def test_a_slip_of_the_pen_is_answered_with_what_is_there(tmp_path):
    (tmp_path / "my_env.py").write_text("from agentrl import Env\nclass Capitals(Env): ...\ndef half(t): ...\n")
    with pytest.raises(ConfigError, match=r"no such file; did you mean my_env\.py\?"):
        load_env(f"{tmp_path}/my_evn.py:Capitals")
    with pytest.raises(ConfigError, match=r"has no 'Capital'; did you mean Capitals\?$"):
        load_env(f"{tmp_path}/my_env.py:Capital")
    with pytest.raises(ConfigError, match=r"has no 'halve'; did you mean half\?$"):
        load_object(f"{tmp_path}/my_env.py:halve")


def sharing(function) -> type[Env]:
    async def step(self, action):
        return StepResult(reward=1.0, done=True)

    return type("Shares", (Env,), {"share": classmethod(function), "step": step})


def missing_file(cls, config):
    return open("no/such/facts.jsonl")


async def bug(cls, config):
    return {}["facts"]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (missing_file, r"Shares\.share failed: .*test_loading\.py:\d+: FileNotFoundError: .*facts\.jsonl"),
        (bug, r"Shares\.share failed: .*test_loading\.py:\d+: KeyError: 'facts'$"),
        (lambda cls: None, r"Shares\.share failed: .*TypeError"),
    ],
)
async def test_a_bug_in_share_ends_the_run_in_one_line(function, says):
    with pytest.raises(ConfigError, match=says) as caught:
        await EnvFactory(sharing(function)).__aenter__()
    assert "\n" not in str(caught.value)


async def test_a_world_that_is_down_is_no_bug_of_share():
    def down(cls, config):
        raise ConnectionRefusedError("port 7")

    def known(cls, config):
        raise InfraError("no table")

    async def cancelled(cls, config):
        asyncio.current_task().cancel()
        await asyncio.sleep(1)

    for function, says in (
        (down, "ConnectionRefusedError: port 7"),
        (known, "no table"),
        (cancelled, "CancelledError"),
    ):
        with pytest.raises(InfraError, match=says):
            await EnvFactory(sharing(function)).__aenter__()
    assert asyncio.current_task().cancelling() == 0


def test_threads_that_load_one_file_at_once_all_get_the_whole_of_it(tmp_path):
    file = tmp_path / "slow_file.py"
    file.write_text("import time\ntime.sleep(0.1)\nfound = 1\n")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(load_object, [f"{file}:found"] * 4)) == [1] * 4


def test_the_cause_of_an_error_whose_text_cannot_be_read_is_its_type():
    class Mute(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert cause(Mute()) == "Mute"
