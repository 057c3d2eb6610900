"""The example that plays skyrl-gym's environments in agentrl: rewards and observations are those of their own API."""

from __future__ import annotations

import json
from random import Random

import pytest

from agentrl import EnvFactory, Limits
from agentrl.testing import rollout
from tests.hosts.conftest import need
from tests.house import ROOT

skyrl_gym = need("skyrl")

ENV = f"{ROOT}/examples/skyrl_gym/env.py:SkyRLGym"
TURNS = 3
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def row(name, number):
    label = {"ground_truth": str(7 * number)}
    return {
        "prompt": [{"role": "user", "content": f"What is {number} times 7?"}],
        "env_class": name,
        "reward_spec": label,
        "reward_model": label,  # aime's name for the same
        "extra_info": {},
        "max_turns": TURNS,
    }


def script(number, seed):
    rng, right = Random(f"{number} {seed}"), 7 * number
    texts = [f"#### {right}", f"So #### {right + 1}", f"\\boxed{{{right}}}", f"Answer: {right}", "no idea", ""]
    return rng.choices(texts, k=TURNS)


def theirs(data, turns):
    env = skyrl_gym.make(data["env_class"], env_config={}, extras=data)
    messages, _ = env.init(data["prompt"])
    rewards = []
    for text in turns:
        output = env.step(text)
        rewards.append(output["reward"])
        messages = messages + output["observations"]
        if output["done"]:
            break
    env.close()
    return sum(rewards), [message["content"] for message in messages], len(rewards)


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_multi_turn", "aime"])
async def test_episodes_are_those_of_skyrl_gym(name, tmp_path):
    rows = [row(name, number) for number in range(1, 6)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    rewards = set()
    async with EnvFactory(ENV, {"data": str(tmp_path / "rows.jsonl")}) as envs:
        tasks = [*envs.cls.tasks(envs.config, "train")]
        for number, (task, data) in enumerate(zip(tasks, rows, strict=True), 1):
            for seed in range(4):
                turns = script(number, seed)
                t = await rollout(envs.make(), task, turns, limits=Limits(turns=TURNS))
                assert t.failure is None, t.failure
                read = [message["content"] for message in t.messages if message["role"] == "user"]
                assert (t.reward, read, t.turn_count) == theirs(data, turns)
                rewards.add(t.reward)
    assert len(rewards) > 1
