"""The gym's tasks: the best player earns 1, a weak player leaves something to learn, and a blind text is not enough."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from agentrl import Limits, Task
from agentrl._util.loading import load_object
from agentrl.env.factory import load_env
from agentrl.testing import rollout
from benchmarks.gym.__main__ import tokens_to_gain
from benchmarks.gym.suite import SUITE, GymTask

OWN = [task for task in SUITE if task.name != "weather"]  # README's Env has tests of its own


@pytest.mark.parametrize("task", OWN, ids=lambda task: task.name)
async def test_gold_earns_1_and_weak_earns_less(task: GymTask) -> None:
    assert await rewards(task, task.gold, "train") == 1
    assert await rewards(task, task.gold, "eval") == 1
    assert 0.2 <= await rewards(task, task.weak, "train") <= 0.75


@pytest.mark.parametrize("task", OWN, ids=lambda task: task.name)
async def test_one_text_in_each_turn_earns_half_at_most(task: GymTask) -> None:
    env = load_env(task.env)
    for text in ("No.", "1", "east", "north", "return a + b"):
        episodes = [await play(task, each, [text] * task.turns) for each in sample(env, "eval")]
        assert fmean(episodes) <= 0.6, text


@pytest.mark.parametrize("task", OWN, ids=lambda task: task.name)
def test_splits_have_different_tasks(task: GymTask) -> None:
    env = load_env(task.env)
    train, held_out = ({content(each) for each in env.tasks(None, split)} for split in ("train", "eval"))
    assert len(train) >= 10
    assert len(held_out) >= 5
    assert not train & held_out


def test_tokens_to_a_share_of_the_gain(tmp_path: Path) -> None:
    steps = [{"step": step, "sampled_tokens": 100} for step in range(1, 5)]
    rewards = [{"step": 2, "mean": 0.5}, {"step": 3, "mean": 0.93}, {"step": 4, "mean": 1.0}]
    for name, rows in (("metrics", steps), ("evaluations", rewards)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert tokens_to_gain(tmp_path, 0.1, 1.0) == 300
    assert tokens_to_gain(tmp_path, 1.0, 0.9) is None


async def rewards(task: GymTask, player: str, split: Any) -> float:
    """The mean reward of a player on some tasks."""
    play_task = load_object(player)
    return fmean([await play(task, each, play_task(each)) for each in sample(load_env(task.env), split)])


async def play(task: GymTask, each: Task, turns: Any) -> float:
    limits = Limits(turns=task.turns, max_tokens_per_turn=None)
    trajectory = await rollout(load_env(task.env)(), each, turns, limits=limits, raise_tool_errors=False)
    assert trajectory.reward is not None
    return trajectory.reward


def sample(env: Any, split: Any) -> list[Task]:
    return list(env.tasks(None, split))[:60]


def content(task: Task) -> str:
    return json.dumps([task.prompt, task.label, task.metadata, task.seed], sort_keys=True, default=str)
