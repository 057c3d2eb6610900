"""Runs without a data file: the Env makes its own tasks."""

import io
import json

import pytest
from rich.console import Console

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError
from agentrl.train import TrainConfig, train
from tests.train.conftest import TOY


def quiet():
    return Console(file=io.StringIO(), width=200)


def prompts(file):
    return {json.loads(line)["task"]["prompt"] for line in file.read_text().splitlines()}


@pytest.mark.thorough
def test_a_run_without_data_plays_the_envs_own_tasks_and_goes_on_with_the_same(make_config, tmp_path, monkeypatch):
    own = {"env": f"{TOY}:Own", "data": None, "episodes": 4, "eval_tasks": 2}
    train(make_config(**own), console=quiet())

    trajectories = tmp_path / "run" / "trajectories"
    played = prompts(trajectories / "step_000001.jsonl") | prompts(trajectories / "step_000002.jsonl")
    assert played == {f"say train {i}" for i in range(4)}, "six places of two steps go round four tasks"
    assert prompts(trajectories / "eval_final.jsonl") == {"say eval 0", "say eval 1"}

    train(make_config(**own, steps=3), resume=True, console=quiet())
    monkeypatch.setattr(load_object(own["env"]), "said", "shout")
    with pytest.raises(ConfigError, match="4 of 4 rows of the data changed"):
        train(make_config(**own, steps=4), resume=True, console=quiet())


def test_data_and_episodes_are_two_answers_to_one_question(tmp_path):
    with pytest.raises(ConfigError, match="episodes counts the Env's own tasks, and data names a file: leave one out"):
        TrainConfig.make(env="x:X", out=tmp_path, data="tasks.jsonl", episodes=3)


def test_without_data_and_without_own_tasks_there_is_nothing_to_train_on(make_config, tmp_path):
    with pytest.raises(ConfigError, match="Toy makes no tasks; name a file of tasks with --data"):
        train(make_config(data=None), console=quiet())
    assert not (tmp_path / "run").exists()


def test_a_run_that_finds_nothing_says_why(make_config, demonstrations):
    console = Console(file=io.StringIO(), width=300)
    warm = {"demonstrations": demonstrations, "steps": 1, "batch_size": 2}
    config = make_config(reward=f"{TOY}:same", warm_start=warm, steps=1, limits={"turns": 1, "max_tokens_per_turn": 6})
    train(config, console=console)
    said = console.file.getvalue()
    assert "verdict              The last steps teach nothing: in 100% of the groups all rewards are equal" in said
    assert "demonstrations have more turns than limits.turns=1" in said
