"""An Env over a real MCP client and server: anyio's task groups on every side, and a process for each episode."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agentrl import EnvFactory, Limits, StopReason, Task
from agentrl.cli import app
from agentrl.engine import ScriptedEngine
from agentrl.env.factory import load_env
from agentrl.episode.options import EpisodeOptions
from agentrl.rollout import Rollout, run_groups
from agentrl.testing import call, rollout
from tests.episode.mcp_env import ENV, EXAMPLE, FAST, children

pytest.importorskip("mcp")

PACKAGE = {"args": [str(EXAMPLE / "server.py")]}
FRANCE = Task(prompt="What is the capital of France?", label="Paris")


@pytest.mark.thorough
async def test_the_example_with_the_packages_own_server():
    async with EnvFactory(ENV, PACKAGE) as envs:
        turns = [call("other"), *sys.modules[envs.cls.__module__].gold(FRANCE)]
        t = await rollout(envs.make(), FRANCE, turns)
    assert (t.reward, t.failure, t.info) == (1.0, None, {})
    assert "other" in t.messages[2]["content"]
    assert t.messages[4]["content"] == "Paris"
    assert children() == set()


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.thorough
async def test_episodes_at_once_each_with_its_own_server(renderer):
    async with EnvFactory(ENV, FAST) as envs:
        turns = [call("capital", country="pid"), call("capital", country="France"), "Paris"]
        given = Rollout(envs=envs, engine=ScriptedEngine(turns, renderer), renderer=renderer)
        played = [t for group in await run_groups(given, [FRANCE] * 4, 4) for t in group]
    assert [(t.reward, t.stop, t.info) for t in played] == [(1.0, StopReason.DONE, {})] * 16
    assert len({t.messages[2]["content"] for t in played}) == 16, "a process each"
    assert children() == set()


async def test_a_rollout_that_is_cancelled_ends_its_servers(renderer):
    class Waits(load_env(ENV)):
        open = 0
        all_open = asyncio.Event()

        async def reset(self, task):
            observation = await super().reset(task)
            Waits.open += 1
            if Waits.open == 8:
                Waits.all_open.set()
            return observation

        async def exec_tool(self, call):
            await asyncio.sleep(3600)

    async with EnvFactory(Waits, FAST) as envs:
        engine = ScriptedEngine([call("capital", country="France")], renderer)
        running = asyncio.create_task(run_groups(Rollout(envs=envs, engine=engine, renderer=renderer), [FRANCE] * 4, 2))
        await asyncio.wait_for(Waits.all_open.wait(), 60)
        assert len(children()) == 8
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert children() == set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_server_that_dies_fails_the_call_and_not_the_run(renderer):
    turns = [call("capital", country="the end"), "Paris"]
    async with EnvFactory(ENV, FAST) as envs:
        options = EpisodeOptions(limits=Limits(tool_s=5))
        engine = ScriptedEngine(turns, renderer)
        given = Rollout(envs=envs, engine=engine, renderer=renderer, options=options)
        (played,) = await run_groups(given, [FRANCE], 4)
    assert [t.stop for t in played] == [StopReason.DONE] * 4
    assert all("Error: " in t.messages[2]["content"] for t in played)
    assert children() == set()


SMALL = """
steps: 10
prompts_per_step: 1
group_size: 2
limits: {turns: 2, max_tokens_per_turn: 4, context: 400}
device: cpu
canaries: {no_tool_calls: 0}
"""


@pytest.mark.thorough
def test_ten_steps_of_training(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL + f"env_config: {json.dumps(FAST)}\n")
    command = ["train", ENV, "--data", str(EXAMPLE / "tasks.jsonl"), "--out", "run", "--config", "small.yaml"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in found] == list(range(1, 11))
    assert {line["episodes"] for line in found} == {2}
    assert children() == set()
