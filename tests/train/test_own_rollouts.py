"""Training with seats, and with branches that a trainer of one's own plays."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentrl.models import load_model, load_tokenizer, save_model
from agentrl.rollout import Budget, EpisodeTree
from agentrl.train import Trainer
from tests.train.conftest import TOY


@pytest.mark.thorough
def test_a_trainers_own_branches_are_learned_from(make_config):
    """The example of docs/training.md: leaves join the groups of a step, whose sizes differ."""

    class BranchingTrainer(Trainer):
        async def collect(self, step):
            groups = await super().collect(step)
            for number, group in enumerate(list(groups)):
                task = group[0].task
                tree = await EpisodeTree.play(
                    self.rollout, task, Budget(episodes=3), session_id=f"tree-{step}-{number}"
                )
                groups.append(await tree.branch(len(tree.root.turns) - 1, 3))
            return groups

    async def run(config):
        async with BranchingTrainer(config) as trainer:
            await trainer.run()
            return trainer.folder.read_metrics()

    metrics = asyncio.run(run(make_config(env=f"{TOY}:Steady")))
    assert [step["episodes"] for step in metrics] == [3 * 4 + 3 * 3] * 2
    for step in metrics:
        assert step["sampled_tokens"] == step["trained_tokens"] + sum(step["masked_tokens"].values())


@pytest.mark.thorough
def test_both_seats_are_trained_and_two_runs_are_the_same(make_config, tmp_path):
    """Self-play, and an opponent with older weights: the same tokens and weights in both runs."""
    base = make_config()
    save_model(load_model(base.model, seed=9), load_tokenizer(base.model), tmp_path / "older")
    opponents = ["policy", str(tmp_path / "older")]

    async def run(out):
        config = make_config(env=f"{TOY}:Pair", out=tmp_path / out, opponents=opponents)
        async with Trainer(config) as trainer:
            await trainer.run()

    for out in ("one", "two"):
        asyncio.run(run(out))
    one, two = ((tmp_path / out / "model/model.safetensors").read_bytes() for out in ("one", "two"))
    assert one == two
    lines = (tmp_path / "one/trajectories/step_000002.jsonl").read_text().splitlines()
    games = [json.loads(line) for line in lines]
    seats = {(game["seat"], game["info"]["opponent"].rpartition("/")[2]) for game in games}
    assert {("one", "policy"), ("other", "policy")} <= seats
    assert {opponent for _, opponent in seats} == {"policy", "older"}
    assert {game["training"]["step"] for game in games} == {2}
    trained = [game for game in games if any(any(values) for values in game["training"]["advantages"])]
    assert {game["seat"] for game in trained} == {"one", "other"}
