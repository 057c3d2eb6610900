"""The protocol's own types, and their fit with slime's."""

import importlib.util
import inspect
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl import errors
from agentrl.sandbox import CommandError, ExecResult, Sandbox
from agentrl_sandbox import FakeSandbox, LocalSandbox

RESULT = ExecResult(3, "out", "err", timed_out=True, truncated=True)


def test_a_result_is_the_tuple_slime_unpacks():
    assert isinstance(RESULT, tuple)
    assert RESULT == (3, "out", "err")
    assert hash(RESULT) == hash((3, "out", "err"))


def test_a_result_shows_its_flags():
    assert repr(ExecResult(0)) == "ExecResult(0, '', '')"
    assert repr(RESULT) == "ExecResult(3, 'out', 'err', timed_out=True, truncated=True)"


def test_results_and_errors_survive_pickling():
    again = pickle.loads(pickle.dumps(RESULT))
    assert repr(again) == repr(RESULT)
    error = pickle.loads(pickle.dumps(CommandError("ls", RESULT)))
    assert (type(error), error.cmd, repr(error.result)) == (CommandError, "ls", repr(RESULT))


def test_require_gives_the_result_back():
    fine = ExecResult(0, "out")
    assert fine.require("ls") is fine


@pytest.mark.parametrize("flaw", [ExecResult(1), ExecResult(0, timed_out=True), ExecResult(0, truncated=True)])
def test_require_refuses_each_flaw(flaw):
    with pytest.raises(CommandError):
        flaw.require("ls")


def test_a_failed_check_is_a_failure_of_the_environment():
    failure = errors.Failure.of(CommandError("ls", ExecResult(1, "", "no\nsuch  thing\n")), "reset")
    assert failure.kind == "environment"
    assert failure.error == "CommandError: command 'ls' failed with exit code 1: no such thing"
    assert issubclass(CommandError, RuntimeError)  # what slime's sandbox raises


# --- against slime's real class ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slime_sandbox():
    source = os.environ.get("SLIME_SRC")
    if not source:
        pytest.skip("SLIME_SRC does not name slime's source folder")
    # Loaded by its file, so that no package `slime` stays behind for other tests to stumble over.
    spec = importlib.util.spec_from_file_location("slime_agent_sandbox", Path(source, "slime/agent/sandbox.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("ours", [Sandbox, LocalSandbox, FakeSandbox])
@pytest.mark.parametrize("method", ["exec", "write_file", "read_file", "__aenter__"])
def test_signatures_take_all_that_slime_calls(slime_sandbox, ours, method):
    assert inspect.iscoroutinefunction(getattr(ours, method))
    mine = dict(inspect.signature(getattr(ours, method)).parameters)
    for name, theirs in inspect.signature(getattr(slime_sandbox.Sandbox, method)).parameters.items():
        own = mine.pop(name)
        assert own.kind == theirs.kind
        assert own.default == theirs.default or name == "user"  # ours is unprivileged unless told otherwise
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in mine.values())


def test_slime_takes_our_sandboxes_for_its_own(slime_sandbox):
    assert isinstance(FakeSandbox(), slime_sandbox.Sandbox)
    assert isinstance(LocalSandbox(trusted=True), slime_sandbox.Sandbox)


async def test_slimes_exec_and_wait_drives_our_sandbox(slime_sandbox, monkeypatch):
    def shell(call):
        if "setsid" in call.cmd:
            box.files["/tmp/.run.out"], box.files["/tmp/.run.done"] = b"agent's log", b"7\n"
        if match := re.search(r"cat (\S+)$", call.cmd):
            return ExecResult(0, box.files[match[1]].decode())
        return ExecResult(0)

    async def at_once(_seconds):
        return None

    monkeypatch.setattr(slime_sandbox, "asyncio", SimpleNamespace(sleep=at_once))
    async with FakeSandbox(shell) as box:
        outcome = await slime_sandbox.exec_and_wait(
            box, cmd="agent", time_budget_sec=60, tag="run", user="agent", workdir="/repo", want_output=True
        )
    assert outcome == (7, "agent's log")
    assert box.files["/tmp/.run.sh"].startswith(b"#!/bin/bash\ncd /repo\n")
    assert {call.user for call in box.calls} == {"agent"}


async def test_slimes_exec_and_wait_sees_a_failed_spawn(slime_sandbox):
    async with FakeSandbox(lambda call: ExecResult(1, "", "no space left")) as box:
        with pytest.raises(RuntimeError, match="no space left"):
            await slime_sandbox.exec_and_wait(box, cmd="agent", time_budget_sec=60, tag="run")
