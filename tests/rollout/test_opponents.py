"""Groups of an Env with seats: who plays, which trajectories come back, baselines by seat, retries, determinism."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from agentrl import ConfigError, EnvFactory, EpisodeOptions, InfraError, StopReason, Task
from agentrl.engine import ScriptedEngine
from agentrl.episode.phases import PhaseSlots
from agentrl.rollout import Rollout, run_groups
from agentrl.rollout.play.failures import FailurePolicy
from agentrl.rollout.play.opponents import FixedPlayer, Opponents, Policy, open_opponents
from agentrl.train.credit import assign_advantages
from tests.episode.seat_envs import Duel

POLICY = Policy()


class Counts(ScriptedEngine):
    """Says the next number of its seed."""

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        return self._generation(str(sampling_params["sampling_seed"] % 1000))


def says_rng(messages, tools, rng):
    return str(rng.randint(0, 999))


def says_two(messages, tools):
    return "2"


def fails(messages, tools):
    raise KeyError("no move")


def rollout_of(renderer, opponents=(POLICY,), cls=Duel, **given):
    return Rollout(
        envs=EnvFactory(cls),
        engine=Counts([], renderer),
        renderer=renderer,
        options=EpisodeOptions(),
        opponents=Opponents(tuple(opponents)),
        **given,
    )


TASKS = [Task(id=str(number)) for number in range(4)]


async def test_against_itself_both_seats_are_in_the_group(renderer):
    groups = await run_groups(rollout_of(renderer), TASKS, 3)
    assert [[t.seat for t in group] for group in groups] == [["left", "right"] * 3] * 4
    assert groups[1][3].session_id == "train-000000-0001-001-right"
    assert all(t.info["opponent"] == "policy" for group in groups for t in group)


async def test_each_opponent_meets_each_seat(renderer):
    opponents = [FixedPlayer("two", says_two), FixedPlayer("any", says_rng)]
    groups = await run_groups(rollout_of(renderer, opponents), TASKS, 2)
    met = [(group[0].info["opponent"], group[0].seat, len(group)) for group in groups]
    assert met == [("two", "left", 2), ("any", "left", 2), ("two", "right", 2), ("any", "right", 2)]
    assert "Said: 2." in groups[2][0].messages[0]["content"]


async def test_the_same_seed_gives_the_same_games_whatever_the_concurrency(renderer):
    opponents = [FixedPlayer("any", says_rng), Policy()]
    plays = [
        await run_groups(rollout_of(renderer, opponents, concurrency=slots), TASKS, 3, seed=5, step=2)
        for slots in (1, 7)
    ]
    tokens = [[[t.tokens for t in group] for group in groups] for groups in plays]
    assert tokens[0] == tokens[1]
    other = await run_groups(rollout_of(renderer, opponents), TASKS, 3, seed=6, step=2)
    assert [[t.tokens for t in group] for group in other] != tokens[0]


async def test_baselines_are_those_of_a_seat(renderer):
    class Favours(Duel):
        """The first seat always gets ten more."""

        def score(self, trajectory):
            return super().score(trajectory) + 10 * (self.seat == "left") + len(self.said[0]) / 10

    groups = await run_groups(rollout_of(renderer, cls=Favours), TASKS, 4)
    advantages, _ = assign_advantages(groups, "dr_grpo", "episode")
    for group, of_group in zip(groups, advantages, strict=True):
        for seat in ("left", "right"):
            values = [turns[0] for t, turns in zip(group, of_group, strict=True) if t.seat == seat]
            assert sum(values) == pytest.approx(0)
            assert max(map(abs, values)) < 1


async def test_a_broken_environment_is_played_again_and_masks_both_seats(renderer):
    class Breaks(Duel):
        resets = 0

        def reset(self, task):
            type(self).resets += 1
            return super().reset(task)

        def step(self, action):
            if self.seat == "right":
                raise InfraError("gone")
            return super().step(action)

    groups = await run_groups(rollout_of(renderer, cls=Breaks), TASKS[:1], 2, keep_unscored=True)
    assert Breaks.resets == 4
    for trajectory in groups[0]:
        assert trajectory.stop is StopReason.FAILED
        assert trajectory.ledger.masked == {"env_failure": trajectory.ledger.sampled}
        assert trajectory.session_id.endswith(f"-again-{trajectory.seat}")


class Falls(Duel):
    """Breaks until it has been reset so often."""

    resets, until = 0, 3

    def reset(self, task):
        type(self).resets += 1
        self.broken = self.resets < self.until
        return super().reset(task)

    def step(self, action):
        if self.broken and self.seat == "right":
            raise InfraError("gone")
        return super().step(action)


async def test_failures_say_how_often_an_episode_is_played_again(renderer):
    Falls.resets = 0
    rollout = rollout_of(renderer, cls=Falls, failures=FailurePolicy(again=5))
    groups = await run_groups(rollout, TASKS[:1], 1)
    assert Falls.resets == 3
    assert [t.session_id for t in groups[0]] == [f"train-000000-0000-000-again2-{seat}" for seat in Falls.seats]
    assert all(t.is_valid for t in groups[0])


async def test_fail_fast_counts_for_every_seat(renderer):
    Falls.resets = 0
    with pytest.raises(InfraError, match=r"episode train-000000-0000-000-\w+ failed in step: .*gone"):
        await run_groups(rollout_of(renderer, cls=Falls, failures=FailurePolicy(again=0, ends_run=True)), TASKS[:1], 1)
    assert Falls.resets == 1


@pytest.mark.parametrize("phase", ["reset", "step", "score"])
async def test_phases_have_their_slots(renderer, phase):
    most = dict.fromkeys(("reset", "step", "score"), 0)

    class Watched(Duel):
        now = dict.fromkeys(most, 0)

        async def _watch(self, phase, result):
            self.now[phase] += 1
            most[phase] = max(most[phase], self.now[phase])
            await asyncio.sleep(0.01)
            self.now[phase] -= 1
            return result

        async def reset(self, task):
            return await self._watch("reset", super().reset(task))

        async def step(self, action):
            return await self._watch("step", super().step(action))

        async def score(self, trajectory):
            return await self._watch("score", super().score(trajectory))

    await run_groups(rollout_of(renderer, cls=Watched, phases=PhaseSlots({phase: 2})), TASKS, 3)
    assert most[phase] == 2
    assert phase == "reset" or most["reset"] > 2


async def test_finished_episodes_are_not_played_again(renderer):
    kept = {}
    groups = await run_groups(
        rollout_of(renderer), TASKS[:1], 2, keep=lambda episode, place: kept.update({place: episode})
    )
    assert sorted(kept) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    del kept[0, 3]
    again = await run_groups(rollout_of(renderer), TASKS[:1], 2, finished=kept)
    assert again[0][:2] == groups[0][:2]
    assert again[0][2] is not groups[0][2]


async def test_opponents_that_are_none(tmp_path):
    async with AsyncExitStack() as stack:
        given = {"stack": stack, "vocabulary": {}, "device": "cpu", "dtype": "float32"}
        for name, said in (
            ("nobody", "neither policy nor a folder"),
            (f"{__file__}:TASKS", "must be a function"),
            (f"{__file__}:rollout_of", "must be a function"),
        ):
            with pytest.raises(ConfigError, match=said):
                open_opponents([name], **given)


async def test_an_opponents_error_names_it(renderer):
    with pytest.raises(ConfigError, match=r"opponent broken failed: .*no move"):
        await run_groups(rollout_of(renderer, [FixedPlayer("broken", fails)]), TASKS[:1], 1)


async def test_older_weights_play_on_an_engine_of_their_own(renderer, tokenizer):
    async with AsyncExitStack() as stack:
        from agentrl.models import load_model, save_model

        folder = stack.enter_context(__import__("tempfile").TemporaryDirectory())
        save_model(load_model("tiny", seed=3), tokenizer, folder)
        vocabulary = tokenizer.get_vocab()
        found = open_opponents([folder], stack, vocabulary, device="cpu", dtype="float32")
        groups = await run_groups(
            rollout_of(renderer, found.opponents), TASKS[:2], 2, sampling_params={"max_new_tokens": 4}
        )
        assert [group[0].seat for group in groups] == ["left", "right"]
        assert groups[0][0].info["opponent"] == folder
        with pytest.raises(ConfigError, match="another vocabulary"):
            open_opponents([folder], stack, {"a": 1}, device="cpu", dtype="float32")


async def test_a_known_game_against_another_opponent_is_played_again(renderer):
    kept = {}
    two, other = FixedPlayer("two", says_two), FixedPlayer("any", says_rng)
    await run_groups(
        rollout_of(renderer, [two]), TASKS[:1], 1, keep=lambda episode, place: kept.update({place: episode})
    )
    (same,) = (await run_groups(rollout_of(renderer, [two]), TASKS[:1], 1, finished=kept))[0]
    (again,) = (await run_groups(rollout_of(renderer, [other]), TASKS[:1], 1, finished=kept))[0]
    assert same is kept[0, 0]
    assert again.info["opponent"] == "any"
