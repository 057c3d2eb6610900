"""agentrl.adapt for an Env with seats: a sample for each seat, with its own reward and baseline."""

from __future__ import annotations

import dataclasses

import pytest

from agentrl import ConfigError, InfraError, adapt
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.slime import post_process_rewards
from tests.episode.seat_envs import Duel
from tests.episode.thinking import TEMPLATE, think
from tests.slime.hook_samples import args as hook_args
from tests.slime.questions import PARAMS

ENV = "tests.episode.seat_envs:Duel"
HOOK = {"custom_reward_post_process_path": "agentrl.slime.post_process_rewards"}


@pytest.fixture
def speaker(renderer):
    def turn(ids):
        text = renderer.decode(ids)
        return "break" if "break" in text else str(text.count("assistant"))

    return ScriptedEngine(turn, renderer, context_length=4096)


@pytest.fixture
def numbered(Sample):
    return dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))


async def test_each_seat_is_a_sample_with_its_own_reward(numbered, serve, make_args, speaker):
    async with serve(speaker) as (_, url):
        given = numbered(prompt="", index=4, group_index=1)
        samples = await adapt(make_args(url, env=ENV, args=HOOK), given, dict(PARAMS))
    assert samples[-1] is given
    assert [sample.metadata["agentrl"]["seat"] for sample in samples] == ["left", "right"]
    assert [sample.metadata["agentrl"]["info"]["opponent"] for sample in samples] == ["policy"] * 2
    assert [sample.reward for sample in samples] == [1.25, -0.75]
    assert {sample.rollout_id for sample in samples} == {4}
    for sample in samples:
        ledger = sample.metadata["agentrl"]["ledger"]
        assert sum(sample.loss_mask) == ledger["trained"] == ledger["sampled"] > 0


async def test_stripped_thoughts_give_each_seat_its_segments(numbered, serve, make_args, tmp_path):
    """All of them are siblings, and each sampled token is trained once."""
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = TEMPLATE
    turns, stripping = [think("I begin.", "1"), think("One more.", "2")], load_renderer(tokenizer)
    async with serve(ScriptedEngine(turns, stripping)) as (_, url):
        arguments = make_args(url, env=ENV, args=HOOK, thinking="strip", chat_template=str(tmp_path / "chat.jinja"))
        given = numbered(prompt="", index=4, group_index=1)
        samples = await adapt(arguments, given, dict(PARAMS))
    notes = [sample.metadata["agentrl"] for sample in samples]
    assert samples[-1] is given
    assert [(note["seat"], note["segment"], note["segments"]) for note in notes] == [
        ("left", 0, 2),
        ("left", 1, 2),
        ("right", 0, 1),
    ]
    assert [sample.reward for sample in samples] == [1.25, 1.25, -0.75]
    assert {sample.rollout_id for sample in samples} == {4}
    said = [len(stripping.encode(turn)) for turn in turns]
    assert [sum(sample.loss_mask) for sample in samples] == [*said, said[0]]


async def test_against_a_function_there_is_one_sample_and_the_seat_changes(Sample, serve, make_args, speaker):
    opponents = ["tests.rollout.test_opponents:says_two"]
    async with serve(speaker) as (_, url):
        arguments = make_args(url, env=ENV, opponents=opponents)
        samples = [await adapt(arguments, Sample(prompt="", index=i, group_index=i), dict(PARAMS)) for i in range(2)]
    notes = [sample.metadata["agentrl"] for sample in samples]
    assert [(note["seat"], note["info"]["opponent"]) for note in notes] == [("left", *opponents), ("right", *opponents)]


async def test_an_evaluation_is_one_sample(Sample, serve, make_args, speaker):
    async with serve(speaker) as (_, url):
        sample = await adapt(make_args(url, env=ENV), Sample(prompt="", index=0), dict(PARAMS), evaluation=True)
    assert (sample.reward, sample.metadata["agentrl"]["seat"]) == (1.25, "left")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "custom-reward-post-process-path"),
        ({**HOOK, "partial_rollout": True}, "partial-rollout"),
        ({**HOOK, "rm_type": "deepscaler"}, "score each seat alone"),
    ],
)
async def test_flags_that_do_not_allow_several_samples_are_refused(numbered, serve, make_args, speaker, flags, said):
    async with serve(speaker) as (_, url):
        arguments = make_args(
            url, env=ENV, args={"advantage_estimator": "grpo", "rewards_normalization": True, **flags}
        )
        with pytest.raises(ConfigError, match=said):
            await adapt(arguments, numbered(prompt="", index=0), dict(PARAMS))


async def test_a_broken_environment_removes_every_seat(numbered, serve, make_args, speaker):
    async with serve(speaker) as (_, url):
        arguments = make_args(url, env="tests.slime.test_seats:Broken", args=HOOK)
        samples = await adapt(arguments, numbered(prompt="", index=0), dict(PARAMS))
    assert [(sample.remove_sample, sum(sample.loss_mask)) for sample in samples] == [(True, 0)] * 2


@pytest.mark.parametrize(("env", "boundary"), [("Unshared", "share"), ("Unmade", "reset")])
async def test_an_environment_that_cannot_be_made_removes_every_seat(
    numbered, serve, make_args, speaker, env, boundary
):
    """slime's rollout goes on. The samples name their seats, sessions and opponent, as those that were played do."""
    async with serve(speaker) as (_, url):
        arguments = make_args(url, env=f"tests.slime.test_seats:{env}", args=HOOK)
        samples = await adapt(arguments, numbered(prompt="", index=0, session_id="s-1"), dict(PARAMS))
    assert [(sample.remove_sample, sum(sample.loss_mask)) for sample in samples] == [(True, 0)] * 2
    notes = [sample.metadata["agentrl"] for sample in samples]
    assert [(note["seat"], note["session_id"]) for note in notes] == [("left", "s-1-left"), ("right", "s-1-right")]
    assert {(note["failure"]["kind"], note["failure"]["boundary"]) for note in notes} == {("environment", boundary)}
    assert {note["info"]["opponent"] for note in notes} == {"policy"}


async def test_credit_by_turn_is_refused_by_name(Sample, make_args):
    with pytest.raises(ConfigError, match="credit: slime takes one number for each sample"):
        await adapt(make_args(env=ENV, credit="turn"), Sample(prompt=""), dict(PARAMS))


def test_baselines_are_those_of_a_seat(numbered):
    samples = []
    for rollout, reward in enumerate([1.0, -1.0, -1.0, 1.0]):
        for seat, value in (("x", reward), ("o", 10.0 - reward)):
            sample = numbered(index=2 * rollout, group_index=0, reward=value)
            sample.rollout_id, sample.metadata = rollout, {"agentrl": {"stop": "done", "seat": seat}}
            samples.append(sample)
    _, found = post_process_rewards(hook_args(advantage_estimator="grpo"), samples)
    x = found[::2]
    assert x == pytest.approx([value * x[0] for value in (1, -1, -1, 1)])
    assert found[1::2] == pytest.approx([-value for value in x])


class Broken(Duel):
    def step(self, action):
        raise InfraError("gone")


class Unmade(Duel):
    def __init__(self, config, shared=None):
        raise InfraError("no machine is free")


class Unshared(Duel):
    @classmethod
    async def share(cls, config):
        raise InfraError("no server is free")
