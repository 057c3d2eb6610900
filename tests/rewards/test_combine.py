"""Graders made of graders."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrl import Env, StepResult, Task, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.rewards import em, grader, group, in_process, per_turn, shaped, weighted
from agentrl.rewards.grader import TurnReward
from agentrl.rewards.maths import is_same
from agentrl.rewards.workers import shared
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Reward

SLOW = __file__.replace("test_combine", "slow_graders")


@grader
def length(written):
    return Reward(float(len(written.answer)), {"turns": len(written.turns)})


@per_turn
def searched(turn, observed):
    return 0.5 if "search" in turn and observed else 0.0


async def test_a_weighted_sum_logs_its_parts():
    wrote = ModelOutput.of_turns(["Paris"], label="Paris")
    grade = await weighted(em=(em, 2.0), length=(length, -0.1)).grade(wrote)
    assert grade.value == pytest.approx(1.5)
    assert grade.parts == pytest.approx({"em": 2.0, "length": -0.5, "length.turns": 1})


@pytest.mark.parametrize("wrong", [{}, {"em": em}, {"em": (len, 1.0)}, {"g": (group(len), 1.0)}])
def test_a_wrong_sum_is_refused_when_it_is_made(wrong):
    with pytest.raises(ConfigError, match="weighted"):
        weighted(**wrong)


async def test_turns_earn_their_share_of_a_sum():
    wrote = ModelOutput.of_turns(["search a", "b", "search c"], observed=("found", "hm"))
    assert await searched.grade(wrote) == TurnReward(0.5, turns=(0.5, 0.0, 0.0))
    twice = await weighted(searched=(searched, 2.0), again=(searched, 1.0)).grade(wrote)
    assert (twice.value, twice.turns) == (1.5, (1.5, 0.0, 0.0))


async def test_shaping_moves_credit_and_not_the_sum():
    found = shaped(lambda written: float(len(written.observed)))
    for observed in (("a", "b"), ("a",), ()):
        grade = await found.grade(ModelOutput.of_turns(["x", "y", "z"], observed=observed))
        assert grade.value == 0.0
    grade = await found.grade(ModelOutput.of_turns(["x", "y", "z"], observed=("a", "b")))
    assert grade.turns == (1.0, 1.0, -2.0)


class Talk(Env):
    async def step(self, action):
        return StepResult("found", done=action.text == "Paris", reward=0.25)


async def test_the_turns_of_a_trajectory_hold_their_rewards(renderer):
    engine = ScriptedEngine(["search", "Paris"], renderer)
    reward = weighted(em=(em, 1.0), searched=(searched, 1.0))
    task = Task(prompt="?", label="Paris")
    trajectory = await run_episode(Talk(), task, engine=engine, renderer=renderer, reward=reward)
    assert trajectory.reward == 1.5
    assert [turn.reward for turn in trajectory.turns] == [0.75, 0.25]


async def test_a_group_reward_gives_one_each():
    with pytest.raises(ConfigError, match="returned 1 rewards for 2 episodes"):
        await group(lambda episodes: [1.0]).grade_group([ModelOutput(), ModelOutput()])


@pytest.mark.thorough
async def test_a_blocking_function_costs_one_episode_its_deadline():
    asked = time.monotonic()
    with pytest.raises(TimeoutError, match=r"slow_graders\.py:sleeps took longer than 0\.3 s"):
        await in_process(f"{SLOW}:sleeps", seconds=0.3).grade(ModelOutput(answer="x"))
    assert time.monotonic() - asked < 30
    assert await in_process(f"{SLOW}:equal").grade(ModelOutput(answer="x", label="x")) == 1.0
    with pytest.raises(ConfigError, match="no such file"):
        in_process("nowhere.py:grade")
    with pytest.raises(ConfigError, match="names no function"):
        in_process("grade")


@pytest.mark.thorough
async def test_a_grader_that_never_returns_costs_one_answer_its_deadline():
    """A loop without an end, beside answers that are graded meanwhile."""
    hangs = asyncio.create_task(shared().run(f"{SLOW}:never", seconds=1.0))
    good = await asyncio.gather(*[is_same(f"\\frac{{{i}}}{{7}}", [f"{i}/7"], seconds=60) for i in range(1, 4)])
    with pytest.raises(TimeoutError, match="took longer than 1 s to grade; its process was killed"):
        await hangs
    assert good == [True] * 3


async def test_text_is_no_reward_of_a_part():
    texts = grader(lambda written: "0.5")
    for made in (per_turn(lambda turn, after: "0.5"), shaped(lambda written: "0.5"), weighted(part=(texts, 1.0))):
        with pytest.raises(ValueError, match=r"is '0.5'; it must be a finite number"):
            await made.grade(ModelOutput(turns=("a",), observed=("b",)))
