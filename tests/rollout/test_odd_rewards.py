"""Rewards that nobody gave or that are no numbers, and errors that are the Env's own."""

from __future__ import annotations

import errno
import json
import math
import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from typer.testing import CliRunner

from agentrl import Env, EnvFactory, InfraError, Reward, StepResult, StopReason, ToolResult, tool
from agentrl.cli import app
from agentrl.engine import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.rollout import BugError, Rollout, evaluate, run_groups
from agentrl.testing import call
from tests.rollout.odd_envs import row

# Rewards: sums of nothing, and values that are no numbers


class RewardsAWin(Env):
    async def step(self, action):
        return StepResult("ok", done=True, reward=1.0 if self.task.label else None)


@pytest.mark.parametrize("wins", [1, 3, 4])
async def test_a_lost_game_counts_as_nothing_in_every_mean(renderer, wins):
    tasks = [replace(row(), id=str(i), label=i < wins) for i in range(4)]
    async with EnvFactory(RewardsAWin) as envs:
        rollout = Rollout(envs=envs, engine=ScriptedEngine(["go"], renderer), renderer=renderer)
        found = await evaluate(rollout, tasks)
    assert [one.reward for one in found.trajectories] == [1.0] * wins + [0.0] * (4 - wins)
    assert found.metrics.reward_mean == wins / 4


GAME = """
from agentrl import Env, StepResult

class Game(Env):
    async def step(self, action):
        return StepResult("ok", done=True, reward=1.0 if self.task.label else None)

class Unscored(Game):
    async def step(self, action):
        return StepResult("ok", done=True)

def says_go(task):
    yield "go"
"""


def played(folder, monkeypatch, env):
    monkeypatch.chdir(folder)
    (folder / "game.py").write_text(GAME)
    rows = [{"prompt": "Go.", "label": i == 0} for i in range(4)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    said = CliRunner().invoke(app, ["play", f"game.py:{env}", "--data", "tasks.jsonl", "--player", "game.py:says_go"])
    assert said.exit_code == 0, said.output
    return said.output


def test_play_counts_a_lost_game_as_eval_does(tmp_path, monkeypatch):
    assert re.search(r"mean reward +0\.250\b", played(tmp_path, monkeypatch, "Game"))


def test_play_counts_what_nothing_scores_as_unscored(tmp_path, monkeypatch):
    said = played(tmp_path, monkeypatch, "Unscored")
    assert re.search(r"unscored\W+4\b", said)
    assert not re.search(r"mean reward +[\d.]", said)


def in_step(value):
    class InStep(Env):
        async def step(self, action):
            return StepResult("ok", done=True, reward=value)

    return InStep, ["go"]


def in_tool(value):
    class InTool(Env):
        @tool
        async def win(self) -> ToolResult:
            """Win."""
            return ToolResult("ok", done=True, reward=value)

    return InTool, [call("win")]


def in_score(value):
    class InScore(Env):
        async def score(self, trajectory):
            return value

    return InScore, ["go"]


def in_reward(value):
    return in_score(Reward(value))


def in_part(value):
    return in_score(Reward(1.0, {"style": value}))


PLACES = pytest.mark.parametrize("place", [in_step, in_tool, in_score, in_reward, in_part])
NO_NUMBERS = [math.nan, math.inf, -math.inf, "0.5", "nan", b"0.5", 1 + 0j, [1.0], {"value": 1.0}, 1e39, object()]
NUMBERS = [1, 1.0, True, np.float32(1), np.int64(1), np.float64(1), Decimal(1)]


async def one_episode(renderer, place, value):
    env, turns = place(value)
    async with EnvFactory(env) as envs:
        rollout = Rollout(envs=envs, engine=ScriptedEngine(turns, renderer), renderer=renderer)
        [[trajectory]] = await run_groups(rollout, [row()], 1)
    return trajectory


@PLACES
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__ + str(value)[:4])
async def test_what_is_no_finite_number_is_no_reward(renderer, place, value):
    """Text is refused even if a number could be read of it: it is the label by mistake, or a judge's raw answer."""
    with pytest.raises((BugError, ConfigError), match=r"(?i)reward|number"):
        await one_episode(renderer, place, value)


@PLACES
@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: type(value).__name__)
async def test_any_kind_of_number_is_a_reward(renderer, place, value):
    trajectory = await one_episode(renderer, place, value)
    assert (trajectory.reward, type(trajectory.reward)) == (1.0, float)
    assert all(type(part) is float for part in trajectory.reward_parts.values())


# A wrong path in an Env is a bug; a world that breaks is not

BUGS = [
    FileNotFoundError(errno.ENOENT, "No such file or directory", "worlds/7.json"),
    PermissionError(errno.EACCES, "Permission denied", "worlds"),
    IsADirectoryError(errno.EISDIR, "Is a directory", "worlds"),
    NotADirectoryError(errno.ENOTDIR, "Not a directory", "worlds/x/y"),
    ExceptionGroup("two", [ConnectionResetError("gone"), FileNotFoundError("worlds/7.json")]),
]
WORLDS = [
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    BrokenPipeError(errno.EPIPE, "Broken pipe"),
    TimeoutError("too slow"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    OSError(errno.EMFILE, "Too many open files"),
    InfraError("down"),
    ExceptionGroup("two", [ConnectionResetError("gone"), TimeoutError("slow")]),
]
HOOKS = pytest.mark.parametrize("hook", ["reset", "step", "score"])


def raising(hook, error):
    async def raises(self, given):
        raise error

    return type("Raises", (RewardsAWin,), {hook: raises})


async def raised(renderer, hook, error):
    async with EnvFactory(raising(hook, error)) as envs:
        rollout = Rollout(envs=envs, engine=ScriptedEngine(["go"], renderer), renderer=renderer)
        return await run_groups(rollout, [row(label=1)], 1)


@HOOKS
@pytest.mark.parametrize("error", BUGS, ids=lambda error: type(error).__name__)
async def test_a_wrong_path_is_a_bug(renderer, hook, error):
    with pytest.raises(BugError, match=type(error).__name__):
        await raised(renderer, hook, error)


@HOOKS
@pytest.mark.parametrize("error", WORLDS, ids=lambda error: type(error).__name__ + str(error)[:10])
async def test_a_world_that_breaks_is_no_bug(renderer, hook, error):
    [[trajectory]] = await raised(renderer, hook, error)
    assert (trajectory.stop, trajectory.failure.kind) == (StopReason.FAILED, "environment")
    assert trajectory.session_id.endswith("-again")
