"""The example of self-play: its rules, its players, and the commands that play it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from agentrl import EnvFactory, Task
from agentrl._util.loading import load_object
from agentrl.check import CheckInputs, check
from agentrl.cli import app
from agentrl.engine import ScriptedEngine
from agentrl.env.factory import load_env
from agentrl.rollout import Rollout, run_groups
from agentrl.rollout.opponents import FixedPlayer, Opponents

FOLDER = Path(__file__).parents[2] / "examples" / "tictactoe"
ENV = f"{FOLDER / 'env.py'}:TicTacToe"


def player(name):
    return load_object(f"{FOLDER / 'players.py'}:{name}")


class Moves(ScriptedEngine):
    """A policy that moves at random, or breaks a rule, as its seed says."""

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        board = self._renderer.decode(input_ids).rpartition("me ")[2]
        free = board.partition("free ")[2].partition("<")[0]
        return self._generation(Random(sampling_params["sampling_seed"] + len(input_ids)).choice([*free]))


def games(renderer, opponent, count=40):
    rollout = Rollout(
        envs=EnvFactory(ENV),
        engine=Moves([], renderer),
        renderer=renderer,
        opponents=Opponents((FixedPlayer(opponent, player(opponent)),)),
    )
    tasks = [Task(id=str(number)) for number in range(count)]
    return [group[0] for group in asyncio.run(run_groups(rollout, tasks, 1))]


def test_the_perfect_player_never_loses_and_the_random_one_does(renderer):
    assert max(game.reward for game in games(renderer, "perfect")) <= 0
    rewards = {game.reward for game in games(renderer, "random")}
    assert {1.0, -1.0} <= rewards
    for game in games(renderer, "random", 10):
        assert game.info["end"] in ("x won", "o won", "draw")


@pytest.mark.parametrize(
    ("x", "o", "rewards"),
    [
        (["1", "2", "3"], ["4", "5"], (1.0, -1.0)),
        (["1", "2", "9"], ["4", "5", "6"], (-1.0, 1.0)),
        (["1", "1"], ["4"], (-1.0, 0.0)),
        (["1", "3", "4", "8", "6"], ["2", "5", "7", "9"], (0.0, 0.0)),
    ],
)
def test_the_rules(renderer, x, o, rewards):
    from agentrl import run_seats

    players = {"x": ScriptedEngine(x, renderer), "o": ScriptedEngine(o, renderer)}
    env = load_env(ENV)()
    played = asyncio.run(run_seats(env, Task(), engine=players["x"], renderer=renderer, players=players))
    assert tuple(t.reward for t in played.values()) == rewards


def test_agentrl_check_finds_nothing(renderer):
    given = CheckInputs(env=ENV, tasks=[Task(id="a"), Task(id="b")], renderer=renderer, process=False)
    assert asyncio.run(check(given)).findings == []


def test_the_commands_play_it(tmp_path):
    out, held = tmp_path / "games.jsonl", tmp_path / "held.jsonl"
    asked = ["play", ENV, "--player", f"{FOLDER / 'players.py'}:random", "--episodes", "3", "--out", str(out)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert [json.loads(line)["seat"] for line in out.read_text().splitlines()] == ["x", "o"] * 3
    opponents = f"opponents=[{FOLDER / 'players.py'}:random]"
    limits = ["--set", "limits.max_tokens_per_turn=4", "--set", opponents]
    result = CliRunner().invoke(
        app, ["eval", ENV, "--model", "tiny", "--episodes", "4", "--out", str(held), "--device", "cpu", *limits]
    )
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["seat"] for line in held.read_text().splitlines()] == ["x", "o"] * 2
