"""examples/coding_agent: its tasks, its configurations and, where bubblewrap is required, what it learns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentrl import EnvFactory
from agentrl.slime.config import SlimeConfig
from agentrl.testing import rollout
from agentrl.train.config import TrainConfig
from agentrl_envs.coding import CodingConfig, CodingEnv
from examples.coding_agent.notes import Imagined, make_tasks, mediocre, perfect
from tests.sandbox.engine import REQUIRED

HERE = Path(__file__).parents[3] / "examples" / "coding_agent"


def test_no_pair_of_file_and_word_is_both_trained_and_held_out():
    pairs = [
        {(task.metadata["asked"], task.metadata["files"][task.metadata["asked"]]) for task in make_tasks(split, 500)}
        for split in ("train", "eval")
    ]
    assert not pairs[0] & pairs[1]


@pytest.mark.thorough
async def test_demonstrations_show_what_a_sandbox_would_have_printed():
    tasks = make_tasks("train", 20)
    config = {"tools": "bash"}
    async with EnvFactory(Imagined, config) as imagined, EnvFactory(CodingEnv, config | {"backend": "local"}) as real:
        for player, reward in ((perfect, 1.0), (noop_once, 0.0)):
            there = await rollout(imagined.make(), tasks[0], player(tasks[0]))
            here = await rollout(real.make(), tasks[0], player(tasks[0]))
            assert (here.reward, there.reward) == (reward, reward)
            assert here.tokens == there.tokens
        won = [(await rollout(imagined.make(), task, mediocre(task))).reward for task in tasks]
    assert 0.1 <= sum(won) / len(won) <= 0.5


def noop_once(task):
    yield "Done"


def test_the_configurations_are_read_by_what_they_are_for(tmp_path):
    for name in ("train.yaml", "evaluate.yaml"):
        given = yaml.safe_load((HERE / name).read_text())
        config = TrainConfig.make(**given, data=tmp_path / "data", out=tmp_path / "out")
        CodingConfig.model_validate(config.env_config)
    given = yaml.safe_load((HERE / "slime.yaml").read_text())
    CodingConfig.model_validate(SlimeConfig.parse("slime.yaml", given["agentrl"]).env_config)


@pytest.mark.skipif("bubblewrap" not in REQUIRED, reason="takes minutes: AGENTRL_REQUIRE=bubblewrap runs it")
@pytest.mark.timeout(1200)
def test_tiny_learns_from_reward_alone_to_read_before_it_writes(tmp_path):
    command = [sys.executable, str(HERE / "demo.py"), "--backend", "bubblewrap", "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, "--warm-steps", "200"], cwd=HERE.parents[1])
    assert done.returncode == 0
    found = json.loads((tmp_path / "run" / "figures.json").read_text())
    assert found["gain_by_rl"] >= 0.3
    assert (found["left_behind"], found["failed_episodes"]) == (0, 0)
