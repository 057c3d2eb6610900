"""When an Env's score is asked for, and what an error in it says."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentrl import Env, EnvFactory, InfraError, Limits, StepResult, StopReason, Task, run_episode, run_seats
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.rewards import dapo, grader
from agentrl.rollout.play.episodes import RewardSeen
from agentrl.rollout.play.groups import settle_rewards

TASK = Task(prompt="6 * 7?", label="42")
TOO_SHORT = EpisodeOptions(limits=Limits(context=3))


class Last(Env):
    """Scores the last action, as most do."""

    def step(self, action):
        return StepResult(done=True)

    def score(self, trajectory):
        return float(trajectory.actions[-1].content == self.task.label)


class Unreachable(Last):
    def reset(self, task):
        raise InfraError("the game is down")


class Duel(Last):
    seats = ("left", "right")

    def reset(self, task):
        return "Go."

    def observe(self, seat):
        return "Go."


@grader
def last_turn(written):
    return float(written.turns[-1] == "42")


def play(renderer, env, turns, **given):
    return run_episode(env, TASK, engine=ScriptedEngine(turns, renderer), renderer=renderer, **given)


@pytest.mark.parametrize("reward", [None, last_turn, dapo], ids=["Env.score", "a grader", "dapo"])
async def test_an_episode_without_a_turn_earns_nothing_and_nobody_is_asked(renderer, reward):
    played = await play(renderer, Last(), ["42"], options=TOO_SHORT, reward=reward)
    assert (played.stop, played.turns, played.failure) == (StopReason.CONTEXT_FULL, [], None)
    assert (played.reward, played.reward_parts) == (0.0, {})


async def test_an_episode_with_a_turn_is_scored(renderer):
    for text, reward in (("42", 1.0), ("41", 0.0)):
        assert (await play(renderer, Last(), [text])).reward == reward


async def test_a_failure_without_a_turn_stays_a_failure(renderer):
    played = await play(renderer, Unreachable(), ["42"])
    assert (played.stop, played.reward) == (StopReason.FAILED, None)
    assert played.failure.error == "InfraError: the game is down"


async def test_no_seat_is_scored_if_none_has_played(renderer):
    engine = ScriptedEngine(["42"], renderer)
    played = await run_seats(Duel(), TASK, engine=engine, renderer=renderer, options=TOO_SHORT)
    assert {seat: trajectory.reward for seat, trajectory in played.items()} == {"left": 0.0, "right": 0.0}


async def test_an_env_that_scores_nothing_is_not_taken_for_one_that_does(renderer):
    """The 0 of an episode without a turn says nothing about the Env."""

    class Unscored(Env):
        def step(self, action):
            return StepResult(done=True)

    short = await play(renderer, Unscored(), ["42"], options=TOO_SHORT)
    whole = await play(renderer, Unscored(), ["42"])
    assert settle_rewards(EnvFactory(Unscored), RewardSeen(), [short, whole]) == [whole]


class Verified(Last):
    async def score(self, trajectory):
        from math_verify import parse, verify

        return float(verify(parse(f"${self.task.label}$"), parse(f"${trajectory.answer}$")))


@grader
def verified(written):
    from math_verify import parse, verify

    return float(verify(parse(f"${written.label}$"), parse(f"${written.answer}$")))


def in_a_thread(playing):
    """Play on a loop in a thread, as slime does."""
    played = []
    thread = threading.Thread(target=lambda: played.append(asyncio.run(playing)))
    thread.start()
    thread.join()
    return played[0]


@pytest.mark.thorough
@pytest.mark.parametrize(("env", "reward"), [(Verified, None), (Last, verified)], ids=["score", "@grader"])
def test_a_timeout_by_signals_outside_of_the_main_thread_names_the_remedy(renderer, env, reward):
    pytest.importorskip("math_verify")
    assert asyncio.run(play(renderer, env(), ["42"], reward=reward)).reward == 1.0
    played = in_a_thread(play(renderer, env(), ["42"], reward=reward))
    assert (played.stop, played.failure.kind) == (StopReason.FAILED, "bug")
    assert (
        "only there can signals end it in time: grade with agentrl.rewards.math or in_process" in played.failure.error
    )
    assert "\n" not in played.failure.error


def test_any_use_of_signals_in_a_thread_names_it(renderer):
    class Alarmed(Last):
        async def step(self, action):
            import signal

            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    failure = in_a_thread(play(renderer, Alarmed(), ["42"])).failure
    assert failure.boundary == "step"
    assert "in the main thread, and only there" in failure.error
