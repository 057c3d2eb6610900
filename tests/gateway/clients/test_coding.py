"""Coding agents in Docker sandboxes: tasks of HumanEval, graded by their tests, with a scripted model that is right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from shlex import quote

import pytest

from agentrl import StopReason, Task
from agentrl.env.factory import EnvFactory
from agentrl_envs.agents.claude_code import ClaudeCode
from agentrl_envs.agents.codex import Codex
from agentrl_envs.agents.gemini_cli import GeminiCli
from agentrl_envs.agents.mini_swe_agent import MiniSweAgent
from agentrl_envs.coding.formats.functions import human_eval
from agentrl_envs.coding.players import commands
from agentrl_envs.coding.problem import load_problem
from agentrl_sandbox import owners
from tests.gateway.clients import said
from tests.gateway.clients.episodes import episode
from tests.gateway.clients.images import folder_of
from tests.gateway.clients.installed import ALL, path_of, slow
from tests.gateway.clients.pauses import PAUSE_S
from tests.gateway.clients.said import Say, Script
from tests.sandbox.engine import entered

pytestmark = pytest.mark.timeout(900)

_AT_ONCE = 2
_OUT = "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 2)\" 2>&1 | tail -1; ls /sys/class/net"
"""Tries to reach a machine, and shows what networks there are."""

AGENTS = {
    "claude-code": (ClaudeCode, said.BASH),
    "codex": (Codex, said.EXEC),
    "gemini-cli": (GeminiCli, said.GEMINI),
    "mini-swe-agent": (MiniSweAgent, said.MINI),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Callable[[str], str]:
    made = {}

    def of(client: str) -> str:
        path_of(client)
        if client not in made:
            made[client] = str(folder_of(client, tmp_path_factory.mktemp("images")))
        return made[client]

    return of


@pytest.fixture
async def engine():
    """A Docker Engine; at the end of the test, nothing is left on it."""
    async with entered("docker") as docker:
        yield docker
        assert [found for found in await docker.list() if found.owner == owners.current()] == []


def gold(client: str, task: Task) -> Script:
    """Looks for a way out, writes the task's own solution, and ends."""
    shell = AGENTS[client][1]
    (step,) = load_problem(task).steps
    work = [shell.run(_OUT), *(shell.run(f"bash -c {quote(one)}") for one in commands(step.gold))]
    turns = [Say(f"Step {number}.", (call,)) for number, call in enumerate(work)]
    submit = Say("Done.", (shell.run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),))
    return Script([*turns, submit if client == "mini-swe-agent" else Say("All is written.")])


async def solve(client: str, image: str, tasks: list[Task], **more):
    """The trajectories of tasks, a few at a time."""
    config = {"backend": "docker", "spec": {"image": image, "memory_mb": 2048}, "size": _AT_ONCE}
    room = asyncio.Semaphore(_AT_ONCE)
    async with EnvFactory(AGENTS[client][0], config) as factory:

        async def one(task):
            async with room:
                return await episode(factory.make(), task, gold(client, task), **more)

        return await asyncio.gather(*map(one, tasks))


def check(trajectory) -> None:
    assert trajectory.failure is None, trajectory.failure
    assert (trajectory.reward, trajectory.stop) == (1.0, StopReason.DONE), trajectory.info
    assert trajectory.ledger.sampled == trajectory.ledger.trained > 0
    assert len(trajectory.segments) == 1
    told = json.dumps([*trajectory.messages])
    assert "Network is unreachable" in told
    assert "eth0" not in told


async def test_mini_swe_agent_solves_ten_tasks(engine, image):
    slow()
    client = "mini-swe-agent"
    for trajectory in await solve(client, image(client), human_eval()[:10]):
        check(trajectory)


@pytest.mark.parametrize("client", ["claude-code", *(["codex", "gemini-cli"] if ALL else [])])
async def test_cli_solves_a_task(engine, image, client):
    """One of them with a pause in its middle, so that a quick run has one, too."""
    (trajectory,) = await solve(
        client, image(client), human_eval()[:1], pause_s=PAUSE_S if client == "claude-code" and not ALL else 0
    )
    check(trajectory)


@pytest.mark.parametrize("client", AGENTS)
async def test_survives_a_pause(engine, image, client):
    """A trainer stops all sampling in the middle of a session."""
    slow()
    (trajectory,) = await solve(client, image(client), human_eval()[:1], pause_s=PAUSE_S)
    check(trajectory)
