"""agentrl.adapt with an agent, over the doubles of slime's package. tests/slime/contract has the real one."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from agentrl import ConfigError, adapt
from agentrl.episode import shared as loop_resources
from tests.slime.partial import Accounted, Slime, account, check, script
from tests.slime.questions import PARAMS

AGENT = f"{Path(__file__).parent / 'asking_env.py'}:Asking"


@pytest.fixture
def numbered(Sample):
    return dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))


def question(kind, **given):
    return kind(prompt="the capital of France?", label="Paris", index=3, **given)


async def test_each_conversation_of_an_agent_is_a_sibling(numbered, serve, make_args):
    async with serve() as (engine, url):
        given = question(numbered)
        samples = await adapt(make_args(url, env=AGENT), given, PARAMS)
    assert samples[-1] is given
    assert [s.rollout_id for s in samples] == [3, 3]
    assert [s.reward for s in samples] == [1.0, 1.0]
    assert sum(sum(s.loss_mask) for s in samples) == sum(s.metadata["agentrl"]["ledger"]["sampled"] for s in samples)
    assert len({session.partition(".")[0] for session in engine.sessions}) == 1
    assert len(set(engine.sessions)) == 2, "an affinity key for each conversation"


@pytest.mark.parametrize("flags", [{"partial_rollout": True}, {"group_rm": True}])
async def test_where_lists_are_not_taken_the_other_conversations_are_masked(numbered, serve, make_args, flags):
    async with serve() as (_, url):
        given = question(numbered)
        sample = await adapt(make_args(url, args=flags, env=AGENT), given, PARAMS)
    assert sample is given
    note = sample.metadata["agentrl"]
    assert (note["segments_left_out"], note["info"]["agent"]["segments"]) == (1, 2)
    assert note["ledger"]["trained"] == sum(sample.loss_mask) > 0
    assert note["ledger"]["sampled"] == note["ledger"]["trained"] + note["ledger"]["masked"]["host"]


async def test_a_host_that_knows_no_siblings_gets_the_main_line(Sample, serve, make_args):
    async with serve() as (_, url):
        sample = await adapt(make_args(url, env=AGENT), question(Sample), PARAMS)
    assert sample.metadata["agentrl"]["segments_left_out"] == 1


async def test_a_prompt_that_slime_has_rendered_is_refused(numbered, serve, make_args):
    async with serve() as (_, url):
        args = make_args(url, args={"apply_chat_template": True}, env=AGENT)
        with pytest.raises(ConfigError, match="remove --apply-chat-template"):
            await adapt(args, question(numbered), PARAMS)


async def test_thoughts_of_an_agent_cannot_be_stripped(numbered, serve, make_args):
    async with serve() as (_, url):
        with pytest.raises(ConfigError, match='thinking "strip" is not for agents'):
            await adapt(make_args(url, env=AGENT, thinking="strip"), question(numbered), PARAMS)


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [False, True])
async def test_storm(make_args, host, renderer, serve, masked):
    """Aborted at random moments, five times over: each token once, whatever was under way."""
    chance, turns = random.Random(7), 8
    engine = Accounted(script(turns), renderer, seconds=0.06)
    engine.queue_s = 0.06
    flags = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": masked}
    async with serve(engine) as (_, url):
        env = AGENT.replace(":Asking", ":AddingAgent")
        slime = Slime(host, make_args(url, env=env, args=flags), engine)
        samples = [slime.sample(i, turns, slow=0.06) for i in range(12)]
        for seconds in [0.02, *(chance.uniform(0.1, 0.25) for _ in range(5))]:
            assert len(await slime.rollout(samples, seconds)) == 12
        last = str(engine.version)
        assert await slime.rollout(samples) == []
        await loop_resources.loop_resources().close()
    for sample in samples:
        check(slime, sample)
        assert "restarts" not in account(sample), account(sample)["restart_reason"]
        said = engine.handed_out[sample.session_id]
        late = sum(len(one.tokens) for one in said if not masked or one.weight_version == last)
        assert sum(sample.loss_mask) == late > 0
