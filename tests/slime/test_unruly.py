"""Whatever an Env does, adapt answers with a sample that slime can take."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl import adapt
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.slime.logs import rollout_metrics
from agentrl.testing import call

ENVS = Path(__file__).with_name("unruly_env.py")
PARAMS = {"temperature": 1.0, "max_new_tokens": 300}


STRICT = (
    "{%- for message in messages %}{% if message.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
    "{%- endfor -%}"
)
"""As templates that know their roles."""


@pytest.fixture
def play(renderer, serve, make_args, Sample, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text(STRICT + load_tokenizer("tiny").chat_template)

    async def once(name, **args):
        engine = ScriptedEngine([call("lookup", city="Rome"), "Done."], renderer, context_length=4096)
        async with serve(engine) as (_, url):
            given = make_args(url, env=f"{ENVS}:{name}", args=args, chat_template=str(template))
            return given, await adapt(given, Sample(prompt="Is it?", index=0, group_index=0), PARAMS)

    return once


@pytest.mark.parametrize(
    ("env", "failure"),
    [
        ("ShareCancels", ("environment", "share")),
        ("OddPrompt", ("bug", "render")),
        ("OddAnswer", ("bug", "render")),
        ("NoNumber", ("bug", "score")),
    ],
)
async def test_it_is_a_failed_sample(play, Sample, env, failure):
    args, sample = await play(env, reward_key="score")
    found = sample.metadata["agentrl"]["failure"]
    assert (found["kind"], found["boundary"]) == failure
    assert (sample.status, sample.remove_sample, sample.reward) == (Sample.Status.FAILED, True, {"score": 0.0})
    assert rollout_metrics(args, [sample]).failures == {"/".join(failure): 1}


async def test_a_part_of_the_reward_that_is_no_number_is_named(play):
    _, sample = await play("NoNumber")
    assert "part 'format' of the reward is None" in sample.metadata["agentrl"]["failure"]["error"]


async def test_closing_that_is_cancelled_from_within_is_noted(play, Sample):
    _, sample = await play("CloseCancels")
    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
    assert "cancelled from within" in sample.metadata["agentrl"]["info"]["close_error"]


async def test_a_part_does_not_pass_for_the_total(play):
    assert (await play("PartAsTotal", reward_key="score"))[1].reward == {"score": 1.5, "bonus": 1.0}


async def test_an_env_may_note_what_it_likes(play):
    args, sample = await play("OwnWords")
    found = rollout_metrics(args, [sample])
    assert (found.tool_errors, found.observation_tokens_cut) == ({}, 0)


@pytest.mark.parametrize(
    ("env", "reason"), [("SnapshotCancels", "it was not parked: Cancelled"), ("RestoreCancels", "snapshot: Cancelled")]
)
async def test_an_aborted_episode_restarts(renderer, serve, make_args, host, monkeypatch, env, reason):
    engine = ScriptedEngine([call("lookup", city="Rome"), "Done."], renderer, context_length=4096)
    sample = host.Sample(prompt="Is it?", index=0, group_index=0)
    async with serve(engine) as (_, url):
        args = make_args(url, env=f"{ENVS}:{env}", args={"partial_rollout": True})
        polls = iter([False, False, False, True])
        state = type("State", (), {"aborted": property(lambda _: next(polls, False))})()
        module = sys.modules[f"{host.Sample.__module__.partition('.')[0]}.rollout.sglang_rollout"]
        monkeypatch.setattr(module, "GenerateState", lambda args: state)
        await adapt(args, sample, PARAMS)
        assert sample.status is host.Sample.Status.ABORTED
        await adapt(args, sample, PARAMS)
    account = sample.metadata["agentrl"]
    assert (sample.status, sample.reward) == (host.Sample.Status.COMPLETED, 1.0)
    assert account["restarts"] == 1
    assert reason in account["restart_reason"]
