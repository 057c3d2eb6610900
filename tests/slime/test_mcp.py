"""`adapt` with an Env over MCP servers; tests/slime/contract has the same in a host's own rollout."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import adapt
from tests.episode.mcp_env import ENV, FAST, children

pytest.importorskip("mcp")
PARAMS = {"temperature": 1.0, "max_new_tokens": 300}


async def test_samples_at_once(serve, make_args, Sample):
    async with serve() as (_, url):
        args = make_args(url, env=ENV, env_config=FAST)
        samples = [Sample(prompt=f"the capital of {c}?", label="Paris", index=i) for i, c in enumerate(["France"] * 6)]
        played = await asyncio.gather(*(adapt(args, sample, dict(PARAMS)) for sample in samples))
    assert [(s.status, s.reward) for s in played] == [(Sample.Status.COMPLETED, 1.0)] * 6
    assert {str(s.metadata["agentrl"].get("info", {})) for s in played} == {"{}"}
    assert children() == set()


async def test_a_server_that_cannot_start_fails_its_samples_and_not_the_rollout(serve, make_args, Sample):
    async with serve() as (_, url):
        args = make_args(url, env=ENV, env_config={"command": "no-such-server", "args": []})
        sample = await adapt(args, Sample(prompt="the capital of France?", label="Paris", index=0), dict(PARAMS))
    assert sample.status is Sample.Status.FAILED
    failure = sample.metadata["agentrl"]["failure"]
    assert (failure["kind"], failure["boundary"]) == ("bug", "reset"), "a command that is not there is a wrong path"
    assert asyncio.current_task().cancelling() == 0
