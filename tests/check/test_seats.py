"""`agentrl check` of an Env with seats: nothing is found where nothing is wrong, and planted defects are."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from agentrl import Task
from agentrl.check import CheckInputs, check
from tests.episode.seat_envs import Duel, Kept, Shop

TASKS = [Task(id="a"), Task(id="b")]


class Shared(Duel):
    """Keeps the numbers on the class, so that every game continues the last one."""

    def reset(self, task):
        type(self).said = [*getattr(type(self), "said", [])][-1:]
        return ""


class Forgetful(Kept):
    """Its snapshot lacks what was said."""

    def snapshot(self):
        return []


class Unsteady(Duel):
    """Says something else in each play, although it declares `deterministic`."""

    plays = count()

    def reset(self, task):
        super().reset(task)
        self.number = next(self.plays)
        return ""

    def observe(self, seat):
        return f"{super().observe(seat)} Play {self.number}."


def gold(task):
    for number in range(3):
        yield str(number)


def found(renderer, cls, gold=gold):
    return asyncio.run(check(CheckInputs(env=cls, tasks=TASKS, renderer=renderer, gold=gold, process=False)))


@pytest.mark.thorough
@pytest.mark.parametrize("cls", [Duel, Kept, Shop])
def test_nothing_is_found_in_sound_games(renderer, cls):
    report = found(renderer, cls)
    assert [f for f in report.findings if f.level == "error"] == []
    assert "everything else" not in report.skipped
    assert "players" in report.skipped


@pytest.mark.parametrize(
    ("cls", "checks"),
    [(Shared, {"state", "determinism"}), (Forgetful, {"resuming"}), (Unsteady, {"determinism"})],
)
def test_defects_are_found(renderer, cls, checks):
    report = found(renderer, cls)
    assert {f.check for f in report.findings if f.level == "error"} & checks


def test_seats_take_the_turns_of_one_player_in_order_of_time(renderer):
    heard = []

    def player(task):
        for number in range(3):
            answer = yield str(number)
            heard.append(answer)

    found(renderer, Duel, player)
    assert heard[:2] == ["Say numbers.\n\nYou are right. Said: 0.", "You are left. Said: 0 1."]
