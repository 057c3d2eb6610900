"""A player that never reads its task: what it earns of the reward of the right answers."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from agentrl import Env, StepResult, Task, tool
from agentrl.check import CheckInputs, check
from agentrl.testing import call

PART = "constant answers"


class Answers(Env):
    """Won by the label as the answer."""

    def step(self, action):
        return StepResult(done=True)

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)


class Generous(Answers):
    """Pays a refusal, too."""

    def score(self, trajectory):
        return max(super().score(trajectory), 0.8 * ("cannot" in (trajectory.answer or "")))


class Rewards(Env):
    """Won by a call of the tool, whatever the call looks up."""

    @tool
    def look(self, word: str) -> str:
        """Look a word up."""
        return word

    def score(self, trajectory):
        return float("tool" in [message["role"] for message in trajectory.messages])


def gold(task):
    yield task.label


def looks(task):
    yield call("look", word=task.label)
    yield task.label


def found(renderer, cls, labels, gold=gold):
    tasks = [Task(id=f"{n}", prompt=f"Number {n}?", label=label) for n, label in enumerate(labels)]
    inputs = CheckInputs(
        env=cls, tasks=tasks[:3], others=tasks[3:], renderer=renderer, gold=gold, only=["players"], process=False
    )
    return asyncio.run(check(inputs))


def drawn(share: float) -> list[str]:
    """30 labels, of which a share is "yes"."""
    labels = ["yes"] * round(30 * share) + [f"no {n}" for n in range(30 - round(30 * share))]
    Random(1).shuffle(labels)
    return labels


def test_the_most_frequent_answer_is_a_warning_with_its_share(renderer):
    [warning] = found(renderer, Answers, drawn(0.7)).mistakes
    assert warning.level == "warning"
    assert warning.message.startswith("a constant answer earns 0.70 of this Env's reward, on 30 tasks")
    assert "'yes'" in warning.message
    assert warning.details == {"player": "the most frequent right turns", "share": 0.7}


def test_a_balanced_env_has_no_warning(renderer):
    report = found(renderer, Answers, drawn(0.5))
    assert report.mistakes == []
    assert report.checked[PART] == "6 players on 30 tasks"


def test_a_paid_refusal_is_a_warning(renderer):
    [warning] = found(renderer, Generous, drawn(0.1)).mistakes
    assert "earns 0.80" in warning.message
    assert "a refusal" in warning.message


def test_the_first_call_alone_that_wins_is_a_warning(renderer):
    [warning] = found(renderer, Rewards, drawn(0.1), gold=looks).mistakes
    assert "earns 1.00" in warning.message


@pytest.mark.parametrize(
    ("labels", "player", "reason"),
    [
        (drawn(1.0), gold, "all tasks have the same right turns"),
        (drawn(1.0)[:11], gold, "11 tasks in the time, and a share needs 12"),
        (drawn(1.0), None, "no gold player"),
    ],
)
def test_the_report_says_why_no_constant_was_played(renderer, labels, player, reason):
    report = found(renderer, Answers, labels, gold=player)
    assert report.mistakes == []
    assert report.checked[PART] == f"not played: {reason}"


def test_rewards_below_zero_are_no_reason_to_stop(renderer):
    class Costs(Answers):
        reward_range = (-1.0, 1.0)

        def score(self, trajectory):
            return 1.0 if trajectory.answer == self.task.label else -1.0

    [warning] = found(renderer, Costs, drawn(0.9)).mistakes
    assert "earns 0.80" in warning.message
