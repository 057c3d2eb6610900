"""The example of self-play: its rules, its players, and the commands that play it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
import yaml
from typer.testing import CliRunner

from agentrl import EnvFactory, Task
from agentrl._util.loading import load_object
from agentrl.check import CheckInputs, check
from agentrl.cli import app
from agentrl.engine import ScriptedEngine
from agentrl.env.factory import load_env
from agentrl.rollout import Rollout, run_groups
from agentrl.rollout.play.opponents import FixedPlayer, Opponents
from agentrl.train import TrainConfig

FOLDER = Path(__file__).parents[2] / "examples" / "tictactoe"
ENV = f"{FOLDER / 'env.py'}:TicTacToe"
PLAYERS = ("random", "mediocre")


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


@pytest.mark.thorough
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
    assert asyncio.run(check(given)).mistakes == []


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


def test_the_mediocre_player_blocks_more_often_than_the_random_one():
    board = [{"role": "user", "content": "me 5 you 12 free 346789"}]
    assert {player("perfect")(board, [], Random(seed)) for seed in range(20)} == {"3"}
    blocks = {name: sum(player(name)(board, [], Random(seed)) == "3" for seed in range(300)) for name in PLAYERS}
    assert blocks["random"] < 90 < 130 < blocks["mediocre"] < 230


def test_the_table_has_the_mean_reward_by_opponent_and_seat(tmp_path):
    """Before: all lost. After: x won against the random player, o drew, and the perfect one won half of its games."""
    after = {("random", "x"): [1, 1], ("random", "o"): [0, 0], ("perfect", "x"): [-1, 0], ("perfect", "o"): [-1, 0]}
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "config.yaml").write_text("opponents: [policy, players.py:random, policy, players.py:perfect]")
    for name, rewards in (("warm", {key: [-1, -1] for key in after}), ("final", after)):
        lines = [
            json.dumps({"seat": seat, "reward": reward, "info": {"opponent": f"players.py:{opponent}"}})
            for (opponent, seat), values in rewards.items()
            for reward in values
        ]
        (tmp_path / "trajectories" / f"eval_{name}.jsonl").write_text("\n".join(lines))
    before_row, after_row = load_object(f"{FOLDER / 'self_play.py'}:table")(tmp_path).splitlines()[1:]
    assert load_object(f"{FOLDER / 'self_play.py'}:self_play_share")(tmp_path) == 0.5
    assert before_row.split()[-4:] == ["-1.00"] * 4
    assert after_row.split()[-4:] == ["1.00", "0.00", "-0.50", "-0.50"]


def test_its_settings_train_both_seats():
    given = yaml.safe_load((FOLDER / "train.yaml").read_text(encoding="utf-8"))
    config = TrainConfig.model_validate({**given, "out": "run"})
    assert "policy" in config.opponents
    assert config.credit == "return"
