"""A program of an image as an Env, by its command line alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentrl import EnvFactory, Limits, StopReason, Task
from agentrl.errors import ConfigError
from agentrl.rewards import em
from agentrl.testing import call, rollout
from agentrl_envs.agents import ContainerAgent
from tests.sandbox.engine import entered

PROGRAM = Path(__file__).with_name("small_agent.py")
TASK = Task(prompt="Write one into a file, then say its name.", label="file.txt")
TURNS = [call("bash", command="echo one > file.txt && cat file.txt"), "file.txt"]


async def played(turns, command=f'{sys.executable} {PROGRAM} "$(cat task.txt)"', limits=None, **config):
    async with EnvFactory(ContainerAgent, {"backend": "local", "size": 1, "command": command, **config}) as factory:
        return await rollout(factory.make(), TASK, turns, reward=em, limits=limits)


@pytest.mark.thorough
async def test_its_result_is_what_the_program_printed_and_a_grader_scores_its_last_reply():
    right = await played(TURNS)
    assert (right.reward, right.stop, right.failure) == (1.0, StopReason.DONE, None)
    assert right.ledger.sampled == right.ledger.trained > 0
    assert right.info["result"] == {"exit_code": 0, "stdout": "file.txt\n", "stderr": "", "timed_out": False}
    assert right.messages[0]["content"] == TASK.prompt
    assert read_by(right) == ["one\n"]
    assert (await played(["I do not know."])).reward == 0.0


@pytest.mark.thorough
async def test_a_program_that_fails_or_never_ends_is_scored():
    failed = await played(["file.txt"], f'{sys.executable} {PROGRAM} "$(cat task.txt)"; exit 3')
    assert (failed.reward, failed.info["result"]["exit_code"]) == (1.0, 3)
    hangs = f'{sys.executable} {PROGRAM} "$(cat task.txt)"; sleep 60'
    assert (await played(["file.txt"], hangs, agent_s=5)).info["result"]["timed_out"] is True
    stopped = await played([TURNS[0]] * 9, limits=Limits(turns=3))
    assert (stopped.stop, stopped.reward, stopped.failure) == (StopReason.MAX_TURNS, 0.0, None)


async def test_a_program_that_is_not_in_the_image_is_named():
    missing = await played(["file.txt"], "no-such-agent")
    assert missing.failure.kind == "environment"
    assert "ended without a reply of the model" in missing.failure.error
    assert "no-such-agent" in missing.info["result"]["stderr"]


async def test_without_a_command_it_is_refused():
    with pytest.raises(ConfigError, match="command"):
        EnvFactory(ContainerAgent, {"backend": "local"})


SEALED = [call("bash", command="python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 53), 3)'"), "no"]


def read_by(played):
    return [one["content"] for one in played.messages if one["role"] == "tool"]


@pytest.mark.thorough
async def test_under_bubblewrap_it_reaches_its_model_and_nothing_else():
    command = f"cat > agent.py <<'END'\n{PROGRAM.read_text()}\nEND\npython3 agent.py \"$(cat task.txt)\""
    async with entered("bubblewrap"):
        sealed = await played(SEALED, command, backend="bubblewrap")
    assert (sealed.failure, sealed.stop) == (None, StopReason.DONE)
    assert "unreachable" in read_by(sealed)[0]


async def test_in_a_docker_image_of_its_own(tmp_path):
    async with entered("docker"):
        (tmp_path / "small-agent").write_text(f"#!/usr/bin/env python3\n{PROGRAM.read_text()}")
        (tmp_path / "small-agent").chmod(0o755)
        base = os.environ["AGENTRL_BASE_IMAGE"]
        (tmp_path / "Dockerfile").write_text(f"FROM {base}\nCOPY small-agent /usr/local/bin/small-agent\n")
        config = {"backend": "docker", "spec": {"image": str(tmp_path)}}
        right = await played(TURNS, 'small-agent "$(cat task.txt)"', **config)
        sealed = await played(SEALED, 'small-agent "$(cat task.txt)"', **config)
    assert (right.failure, right.reward, right.info["result"]["stdout"]) == (None, 1.0, "file.txt\n")
    assert right.ledger.sampled == right.ledger.trained > 0
    assert "unreachable" in read_by(sealed)[0]
