"""The environment of docs/your-own.md, put together from the blocks of the page."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Callable, Generator
from typing import Any

import pytest

from agentrl import Task, Trajectory
from agentrl.engine import Turn
from agentrl.testing import rollout
from tests.docs.blocks import ROOT, blocks

LINES = 125
"""The most lines of the page's file. A guide stays short."""
TASKS = 24


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names of the page's file."""
    page = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
    text = "\n".join(block.text for block in blocks(page) if block.kind == "python")
    assert len(text.splitlines()) <= LINES
    file = tmp_path_factory.mktemp("your_own") / "shop.py"
    file.write_text(text, encoding="utf-8")
    return runpy.run_path(str(file))


def played(shop: dict[str, Any], player: Callable[[Task], Generator[Turn, str, None]]) -> list[Trajectory]:
    tasks = list(shop["Shop"].tasks(None, "eval"))[:TASKS]
    return [asyncio.run(rollout(shop["Shop"](), task, player(task))) for task in tasks]


def test_gold_wins_each_task_and_noop_none(shop: dict[str, Any]) -> None:
    assert {trajectory.reward for trajectory in played(shop, shop["gold"])} == {1.0}
    assert {trajectory.reward for trajectory in played(shop, shop["noop"])} == {0.0}


def test_without_a_look_closed_orders_are_lost(shop: dict[str, Any]) -> None:
    blind = played(shop, lambda task: shop["serve"](task, looks=False))
    assert {(t.task.metadata["right"] == "person", t.reward) for t in blind} == {(True, 0.0), (False, 1.0)}


def test_the_teacher_skips_the_look_two_times_of_three(shop: dict[str, Any]) -> None:
    task = next(iter(shop["Shop"].tasks(None, "train")))
    players = [shop["explorer"](task) for _ in range(600)]
    second_turns = [(next(player), player.send("Order 12."))[1] for player in players]
    looks = sum("look" in str(turn) for turn in second_turns)
    assert 0.3 <= looks / len(players) <= 0.4
