"""The door to Tinker, proved in the cookbook's own loop: what it would train on is what agentrl's episodes are."""

from __future__ import annotations

import asyncio
import json
import pickle
from importlib.metadata import version

import pytest

from agentrl import ConfigError, Env, EpisodeOptions, InfraError, Limits, StepResult, TurnOptions
from agentrl.errors import BugError
from agentrl.hosts.equality import HostEpisode, differences
from agentrl.hosts.export import script
from agentrl.hosts.tinker import VERSION, TinkerRollouts
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, BreaksAtReset, Buggy, Masks, Slow, TwoTools, Weather
from tests.hosts.hosting import Policy

need("tinker")

from tinker_cookbook.rl.rollout_strategy import RetryOnFailure  # noqa: E402
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout  # noqa: E402

from tests.hosts.playing.tinker import Completer, play, rows  # noqa: E402

LIMITS = {"turns": 6, "max_tokens_per_turn": 40, "context": 400}
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]  # of the cookbook's packages


def test_the_version():
    assert version("tinker-cookbook") == VERSION, "the door is written for another version: read its source again"


def rollouts(cls, **settings):
    return TinkerRollouts(cls, **{"model": "tiny", "limits": LIMITS, "batch_size": 4, "group_size": 4, **settings})


async def all_differences(episodes, cls, renderer, **limits):
    options = EpisodeOptions(limits=Limits(**{**LIMITS, **limits}))
    return [
        str(difference)
        for episode in episodes
        for difference in await differences(episode, cls(), renderer, options=options)
    ]


async def hosted(source, renderer, seeds=range(16)):
    """The episodes of the cookbook's loop."""
    tasks = source.tasks()
    for seed in seeds:
        policy, builder = Completer(Policy(renderer), seed), source.dataset("train").builders[seed % len(tasks)]
        yield await play(builder, policy)


@pytest.mark.parametrize("cls", [Weather, Masks, TwoTools, Breaks, BreaksAtReset])
@pytest.mark.parametrize("limits", [{}, {"tokens": 100}, {"context": 260}], ids=str)
async def test_each_episode_of_the_cookbook_is_agentrls(cls, limits, renderer):
    """Right and wrong calls, a world that breaks, answers that are too long; also at the ends of the budgets."""
    cls.open = 0
    source = rollouts(cls, limits={**LIMITS, **limits})
    episodes = [episode async for episode in hosted(source, renderer)]
    assert await all_differences(episodes, cls, renderer, **limits) == []
    failed = [episode.reward is None for episode in episodes]
    assert any(failed) is (cls in (Breaks, BreaksAtReset))
    assert all(failed) is (cls is BreaksAtReset)
    assert cls is BreaksAtReset or len({len(episode.turns) for episode in episodes}) > 2
    assert cls.open == 0


async def test_a_group_in_the_cookbooks_loop(renderer):
    """Retries replace failed episodes, and the Env of each dropped episode is closed."""
    Weather.open = Breaks.open = 0
    policy = Completer(Policy(renderer))
    builder = pickle.loads(pickle.dumps(rollouts(Weather).dataset("train").get_batch(0)[0]))
    group = await do_group_rollout(builder, policy)
    assert len(group.get_total_rewards()) == 4
    assert group.trajectories_G[0].stop_reason in ("completed", "max_turns", "max_tokens", "parse_error")
    broken = next(each for each in rollouts(Breaks).dataset("train").builders if each.task.seed % 2)
    with pytest.raises(InfraError, match="the weather station is down"):
        await do_group_rollout(broken, Completer(Policy(renderer), 1))
    with pytest.raises(InfraError):
        await do_group_rollout(broken, Completer(Policy(renderer), 1), strategy=RetryOnFailure(max_retries=2))
    assert (Weather.open, Breaks.open, builder.envs) == (0, 0, [])


async def test_two_envs_in_one_loop(renderer):
    """The episodes of both Envs play at the same time, and each is an episode of its own Env."""
    classes = (Weather, TwoTools)
    for cls in classes:
        cls.open = 0
    builders = [(cls, builder) for cls in classes for builder in rollouts(cls).dataset("train").builders[:6]]
    plays = (play(builder, Completer(Policy(renderer), seed)) for seed, (_, builder) in enumerate(builders))
    episodes = await asyncio.gather(*plays)
    for cls in classes:
        its = [episode for episode, (each, _) in zip(episodes, builders, strict=True) if each is cls]
        assert await all_differences(its, cls, renderer) == []
    assert {cls.open for cls in classes} == {0}


async def test_a_turn_that_agentrl_masks_is_masked_by_the_cookbook(renderer):
    class Calling(Completer):
        async def __call__(self, model_input, stop, *, max_tokens=None):
            self.policy.generate = self.once
            return await super().__call__(model_input, stop, max_tokens=max_tokens)

        async def once(self, ids, params):
            from agentrl.engine import ScriptedEngine

            said = ['<tool_call>\n{"name": "lookup", "arguments": \n</tool_call>', "sunny"][len(self.turns)]
            return await ScriptedEngine([said], renderer).generate(ids, params)

    policy, builder = Calling(Policy(renderer)), rollouts(Masks).dataset("train").builders[0]
    trajectory = await do_single_rollout(policy, (await builder.make_envs())[0])
    assert [t.metrics.get("parse_error_masked") for t in trajectory.transitions] == [1.0, None]
    reward = sum(transition.reward for transition in trajectory.transitions)
    episode = HostEpisode(builder.task, policy.turns, [*rows(trajectory)], reward)
    assert await all_differences([episode], Masks, renderer) == []


async def test_a_cancelled_loop_leaves_no_env_open(renderer):
    Slow.open, Slow.asked = 0, asyncio.Event()
    builder = rollouts(Slow).dataset("train").builders[0]
    group = asyncio.create_task(do_group_rollout(builder, Completer(Policy(renderer), 3)))
    await Slow.asked.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert Slow.open == 0


async def test_a_prompt_that_is_too_long_ends_before_a_turn(renderer):
    policy, builder = (
        Completer(Policy(renderer)),
        rollouts(Weather, limits={"context": 20}).dataset("train").builders[0],
    )
    trajectory = await do_single_rollout(policy, (await builder.make_envs())[0])
    assert (trajectory.stop_reason, policy.turns) == ("max_tokens", [])


async def test_the_data_sets():
    train, held_out = await rollouts(Weather)()
    assert (len(train), len(held_out)) == (7, 4)
    assert [builder.group_size for builder in (*train.get_batch(6), held_out.get_batch(0)[0])] == [4, 4, 1]
    assert train.get_batch(0)[0].logging_tags() == ["Weather"]


def test_each_epoch_has_all_tasks_in_another_order():
    ids = [builder.task.id for builder in rollouts(Weather, epochs=3).dataset("train").builders]
    each = [ids[place : place + len(ids) // 3] for place in range(0, len(ids), len(ids) // 3)]
    assert [sorted(epoch) for epoch in each] == [sorted(task.id for task in rollouts(Weather).tasks())] * 3
    assert each[0] != each[1] != each[2]
    assert len(rollouts(Weather).dataset("train").builders) == len(each[0])


async def test_what_cannot_work_is_said_at_once(renderer):
    class Stops(Env):
        turn_options = TurnOptions(stop="!")

        def step(self, action):
            return StepResult(done=True)

    with pytest.raises(ConfigError, match="say how long a sequence may be"):
        TinkerRollouts(Weather, model="tiny")
    for cls, error, words in ((Stops, ConfigError, "Stops has stop strings"), (Buggy, BugError, "KeyError")):
        builder = rollouts(Weather).dataset("train").builders[0]
        builder.hosted = rollouts(cls)
        with pytest.raises(error, match=words):
            await do_group_rollout(builder, Completer(Policy(renderer)))


async def test_the_exported_script_reaches_the_cookbooks_training(monkeypatch):
    """The service itself is not called: `train.main` gets the configuration, which the cookbook writes to its log."""
    from tinker_cookbook.rl import train
    from tinker_cookbook.utils.ml_log import dump_config

    seen = []

    async def main(config):
        seen.append(config)

    monkeypatch.setattr(train, "main", main)
    text = script("tests.hosts.envs:Weather", "tinker", model="tiny", file="f", settings={})
    await asyncio.to_thread(exec, text, {"__name__": "__main__"})
    dumped = json.loads(json.dumps(dump_config(seen[0]), default=str))
    assert dumped["dataset_builder"]["batch_size"] == 16
    dataset, _ = await seen[0].dataset_builder()
    (builder, *_) = dataset.get_batch(0)
    group = await do_group_rollout(builder, Completer(Policy(await builder.hosted.renderer())))
    assert len(group.trajectories_G) == 8
