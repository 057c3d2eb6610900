"""Partial rollouts whose engine accounts for each token."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from agentrl import adapt
from agentrl.engine import ScriptedEngine
from agentrl.env.factory import load_env
from agentrl.episode import shared as _loop_resources
from agentrl.testing import call

ENV_FILE = Path(__file__).parent / "adding_env.py"


PARAMS = {"temperature": 1.0, "max_new_tokens": 3000, "stop": None, "stop_token_ids": None}


def script(turns: int) -> list:
    calls = [{**call("add", n=n), "content": "The next number is added now."} for n in range(1, turns)]
    return [*calls, "All of them were added."]


@pytest.fixture
def world():
    """The module of the Envs."""
    module = sys.modules[load_env(f"{ENV_FILE}:Adding").__module__]
    module.ADDED.clear()
    module.OPEN.clear()
    return module


class Accounted(ScriptedEngine):
    """Keeps all that it hands out, by session, each log-prob a number of its own; honours aborts in mid-generation."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, context_length=8192, **kwargs)
        self.handed_out = defaultdict(list)
        self.asked = defaultdict(list)
        self.version, self.queue_s = 0, 0.0
        self._unique = count(1)
        self._random = random.Random(0)

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        version = str(self.version)
        self.asked[session_id].append(list(input_ids))
        await asyncio.sleep(self.queue_s * self._random.random())
        said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        log_probs = [-next(self._unique) / 2**20 for _ in said.tokens]
        said = replace(said, log_probs=log_probs, weight_version=version)
        self.handed_out[session_id].append(said)
        return said


class Slime:
    """What slime does with samples, over the doubles of its package."""

    def __init__(self, host, args, engine):
        self.host, self.args, self.engine, self.aborts = host, args, engine, 0

    def sample(self, index: int = 0, turns: int = 3, **metadata):
        label = sum(range(1, turns))
        return self.host.Sample(
            prompt="Add up.", label=label, index=index, group_index=index, session_id=f"s-{index}", metadata=metadata
        )

    async def play(self, sample):
        if self.args.mask_offpolicy_in_partial_rollout and sample.response_length > 0:
            sample.loss_mask = [0] * sample.response_length
        assert await adapt(self.args, sample, PARAMS) is sample

    async def rollout(self, samples, seconds: float | None = None, until=None):
        """All samples at once, aborted after so many seconds, or as soon as `until` says so."""
        self.host.state.aborted = False
        pending = {asyncio.create_task(self.play(sample)) for sample in samples}
        if until is not None:
            async with asyncio.timeout(10):
                while not until():  # noqa: ASYNC110 - what is waited for happens in another task's library code
                    await asyncio.sleep(0.002)
        elif seconds is not None:
            await asyncio.sleep(seconds)
        if until is not None or seconds is not None:
            self.host.state.aborted = True
        while pending:
            if self.host.state.aborted:
                await self.engine.abort()
            done, pending = await asyncio.wait(pending, timeout=0.01 if self.host.state.aborted else None)
            for task in done:
                task.result()
        self.host.state.aborted = False
        self.engine.version += 1
        aborted = [s for s in samples if s.status is self.host.Sample.Status.ABORTED]
        self.aborts += len(aborted)
        return aborted


@pytest.fixture
def slime(serve, make_args, host, renderer, world):
    """`async with slime("Saved", ...) as slime`; `args={...}` are slime's, the rest agentrl's."""

    @asynccontextmanager
    async def running(env, turns=3, seconds=0.0, args=None, **config):
        engine = Accounted(script(turns), renderer, seconds=seconds)
        given = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": False, **(args or {})}
        async with serve(engine) as (_, url):
            yield Slime(host, make_args(url, env=f"{ENV_FILE}:{env}", args=given, **config), engine)
            if here := _loop_resources.loops.get(asyncio.get_running_loop()):
                await here.close()

    return running


def account(sample):
    return sample.metadata["agentrl"]


def check(slime, sample):
    """Of all that the engine handed out, each token is in the sample once, in order, with its log-prob and mask."""
    handed_out = slime.engine.handed_out[sample.session_id]
    response = sample.tokens[-sample.response_length :]
    assert len(response) == len(sample.loss_mask) == len(sample.rollout_log_probs)
    sampled = [i for i, log_prob in enumerate(sample.rollout_log_probs) if log_prob]
    assert [response[i] for i in sampled] == [token for said in handed_out for token in said.tokens]
    assert [sample.rollout_log_probs[i] for i in sampled] == [p for said in handed_out for p in said.log_probs]
    assert {i for i, mask in enumerate(sample.loss_mask) if mask} <= set(sampled)
    assert sample.weight_versions == [said.weight_version for said in handed_out]
    asked = slime.engine.asked[sample.session_id]
    assert all(sample.tokens[: len(ids)] == ids for ids in asked)
    assert sample.prefix_cache_info.total_prompt_tokens == sum(map(len, asked)), "each request is counted once"
    ledger = account(sample)["ledger"]
    assert ledger["sampled"] == len(sampled) == sum(sample.loss_mask) + sum(ledger["masked"].values())
    assert (sample.status, sample.reward) == (slime.host.Sample.Status.COMPLETED, 1.0)
    assert "resume" not in account(sample), "who ended needs no ticket"
