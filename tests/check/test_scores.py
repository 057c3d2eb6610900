"""What `agentrl check` says of scores: None, nothing done that is rewarded, and which play it was."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import Env, StepResult, Task, tool
from agentrl.check import CheckInputs, check


class Scored(Env):
    """Wins by the word of the task. A task whose word is "nothing" is won by not acting."""

    @tool
    async def look(self, at: str) -> str:
        """Look at something."""
        return at

    async def score(self, trajectory):
        won = (trajectory.answer or "") == self.task.label
        return float(won or self.task.label == "nothing")


class Forgets(Scored):
    async def score(self, trajectory):  # the line that is named
        float((trajectory.answer or "") == self.task.label)


class InSteps(Env):
    """Rewards in a step, and writes no score."""

    async def step(self, action):
        return StepResult("", reward=1.0 if action.text == self.task.label else None, done=True)


class HandsOn(InSteps):
    async def score(self, trajectory):
        return sum(trajectory.step_rewards) if trajectory.step_rewards else None


class Unrewarded(Env):
    async def step(self, action):
        return StepResult("", done=True)


class Four(Scored):
    async def score(self, trajectory):
        return 4.0 * await super().score(trajectory)


def gold(task):
    yield task.label


def found(renderer, cls, *labels, gold=gold):
    tasks = [Task(id=label, prompt=f"Say {label}.", label=label) for label in labels or ("one", "two")]
    return asyncio.run(
        check(CheckInputs(env=cls, tasks=tasks, renderer=renderer, gold=gold, only=["players"], process=False))
    )


@pytest.mark.parametrize("player", [gold, None])
def test_a_score_that_returns_none_is_an_error_at_its_line(renderer, player):
    [error] = found(renderer, Forgets, gold=player).errors
    assert "score returned None" in error.message
    assert error.remedy == "return a number"
    assert error.place.line == Forgets.score.__code__.co_firstlineno


class Losing(InSteps):
    async def step(self, action):
        return StepResult("", reward=float(action.text == self.task.label), done=True)


class Sums(InSteps):
    def score(self, trajectory):
        return sum(trajectory.step_rewards)


@pytest.mark.parametrize("cls", [Losing, Sums])
def test_rewards_in_steps_need_no_score(renderer, cls):
    assert found(renderer, cls).mistakes == []


@pytest.mark.parametrize("cls", [InSteps, HandsOn])
def test_a_loss_that_gets_no_reward_is_a_warning(renderer, cls):
    [warning] = found(renderer, cls).mistakes
    assert warning.level == "warning"
    assert "no step gave a reward" in warning.message
    assert "reward=0.0" in warning.remedy


def test_a_gold_player_without_a_reward_is_an_error(renderer):
    [error] = found(renderer, Unrewarded).errors
    assert "the gold player got no reward" in error.message


def test_some_tasks_with_nothing_to_do_are_a_warning_that_names_them(renderer):
    [warning] = found(renderer, Scored, "one", "nothing", "two").mistakes
    assert warning.level == "warning"
    assert warning.message.endswith("it is rewarded on 1 of 3 tasks: nothing")
    assert "tasks with nothing to do" in warning.remedy


def test_nothing_done_that_wins_every_task_is_an_error(renderer):
    [error] = found(renderer, Scored, "nothing").errors
    assert "the full reward on every task" in error.message


def test_gold_that_fails_is_told_beside_nothing_that_is_rewarded(renderer):
    def lost(task):
        yield "wrong"

    report = found(renderer, Scored, "one", "nothing", gold=lost)
    assert "does not get the highest" in report.errors[0].message


def test_a_reward_names_its_player_its_turns_and_their_limit(renderer):
    [warning, error] = sorted(found(renderer, Four, "one").mistakes, key=lambda one: one.check, reverse=True)
    assert "the reward 4 is outside of -1 to 1, and no reward_range is declared" in warning.message
    assert "(the gold player, task one, 1 of at most 12 turns)" in warning.message
    row = {"player": "the gold player", "task": "one", "turns": 1, "turn_limit": 12, "reward": 4.0}
    assert warning.details == row
    assert "does not get the highest" in error.message
    [written] = [one for one in found(renderer, Four, "one").to_json()["findings"] if one["check"] == "reward"]
    assert written["details"] == row


class Sums(Env):
    """The label is a number, the answer is text."""

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)


def test_a_label_that_is_no_text_is_compared_with_the_answer(renderer):
    tasks = [Task(id=str(n), prompt=f"Say {n}.", label=n) for n in (3, 4)]

    def say(task):
        yield str(task.label)

    report = asyncio.run(
        check(CheckInputs(env=Sums, tasks=tasks, renderer=renderer, gold=say, only=["players"], process=False))
    )
    error = next(one for one in report.mistakes if one.level == "error")
    assert "the solution scored 0 and 0 (" in error.message
    assert error.message.endswith("it answered '3', and the label is 3, of type int: compare with str(self.task.label)")
