"""agentrl.adapt where one episode is several samples, and where slime's trainer replays what the engine returned."""

from __future__ import annotations

import dataclasses

import pytest

from agentrl import ConfigError, adapt
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from tests import test_thinking
from tests.slime.test_adapt import PARAMS, question


@pytest.fixture
def stripping(make_args, tmp_path):
    """`stripping(url)`: args for an Env whose template drops earlier thoughts, which are stripped."""
    (tmp_path / "chat.jinja").write_text(test_thinking.TEMPLATE)
    config = {"env": "tests.test_thinking:Guess", "thinking": "strip", "limits": {"turns": 5}}
    return lambda url, **args: make_args(url, args=args, chat_template=str(tmp_path / "chat.jinja"), **config)


@pytest.fixture
def thinker():
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = test_thinking.TEMPLATE
    return ScriptedEngine(test_thinking.SCRIPT, load_renderer(tokenizer), context_length=4096)


async def test_stripped_thoughts_give_a_list_of_siblings(Sample, serve, stripping, thinker):
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))
    async with serve(thinker) as (_, url):
        given = numbered(prompt="Guess my word.", index=4)
        samples = await adapt(stripping(url, reward_key="total"), given, {**PARAMS, "max_new_tokens": 2000})
    assert len(samples) == 3
    assert samples[-1] is given
    assert {s.rollout_id for s in samples} == {4}
    assert [s.reward for s in samples] == [{"total": 2.0}] * 3
    sampled = sum(turn for s in samples for turn in s.loss_mask)
    assert sampled == sum(s.metadata["agentrl"]["ledger"]["sampled"] for s in samples) > 0


async def test_an_evaluation_is_one_sample_stripped_or_not(Sample, serve, stripping, thinker):
    async with serve(thinker) as (_, url):
        given = Sample(prompt="Guess my word.")
        sample = await adapt(stripping(url), given, {**PARAMS, "max_new_tokens": 2000}, evaluation=True)
    assert sample is given
    assert sample.metadata["agentrl"]["turns"] == 5


async def test_an_own_filter_takes_lists(Sample, serve, stripping, thinker):
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))
    async with serve(thinker) as (_, url):
        args = stripping(url, dynamic_sampling_filter_path="agentrl.slime.has_spread")
        assert isinstance(await adapt(args, numbered(prompt="Guess", index=0), PARAMS), list)


async def test_slimes_reward_model_is_not_asked_for_each_segment_alone(Sample, serve, stripping, thinker, tmp_path):
    unscored = tmp_path / "unscored.py"
    unscored.write_text("def nothing(trajectory):\n    return None\n")
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))
    async with serve(thinker) as (_, url):
        args = stripping(url, rm_type="math")
        args.agentrl["reward"] = f"{unscored}:nothing"
        with pytest.raises(ConfigError, match=r"reward from Env.score or `reward`"):
            await adapt(args, numbered(prompt="Guess my word.", index=0), {**PARAMS, "max_new_tokens": 2000})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"use_rollout_routing_replay": True, "num_layers": 1, "moe_router_topk": 1}, "returned no routed_experts"),
        ({"rollout_top_p": 0.9}, "returned no top_p_token_ids"),
    ],
)
async def test_an_engine_that_does_not_return_what_is_to_be_replayed(
    Sample, serve, make_args, flags, message, monkeypatch
):
    monkeypatch.setattr("agentrl.slime.adapt.request_fields", lambda flags: {})  # which this server would refuse
    fields = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts")
    replayed = dataclasses.make_dataclass("Sample", [(name, object, None) for name in fields], bases=(Sample,))
    async with serve() as (_, url):
        with pytest.raises(ConfigError, match=message):
            await adapt(make_args(url, args=flags), question(replayed), PARAMS)
        tested = question(replayed)
        assert (await adapt(make_args(url, args=flags), tested, PARAMS, evaluation=True)).reward == 1.0
