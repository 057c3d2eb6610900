"""examples/customer_service: tools over a database, a policy, a simulated user."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import yaml

from agentrl import EnvFactory, Limits, Task
from agentrl._util.loading import load_object
from agentrl.rollout.data.tasks import own_tasks
from agentrl.slime.config import SlimeConfig
from agentrl.testing import call, rollout
from agentrl.testing.chat_server import chat_server
from agentrl.train.config import TrainConfig

HERE = Path(__file__).parents[2] / "examples" / "customer_service"
ENV = f"{HERE}/service.py:CustomerService"
LIMITS = Limits(turns=10)


def tasks(split="train"):
    return own_tasks(EnvFactory(ENV), split)


def task_of(kind):
    return next(task for task in tasks() if task.metadata["kind"] == kind)


async def play(task, turns, config=None):
    async with EnvFactory(ENV, config or {}) as envs:
        return await rollout(envs.make(), task, turns, limits=LIMITS)


@pytest.mark.parametrize(("player", "reward"), [("gold", 1.0), ("noop", 0.0)])
async def test_each_kind_of_task_can_be_won_and_none_by_doing_nothing(player, reward):
    found, start = [*tasks()[:6], *tasks("eval")[:1]], load_object(f"{HERE}/people.py:{player}")
    async with EnvFactory(ENV) as envs:
        played = await asyncio.gather(*(rollout(envs.make(), task, start(task), limits=LIMITS) for task in found))

    assert [t.reward for t in played] == [reward] * 7


def test_there_are_tasks_of_each_kind_for_customers_of_either_split():
    found = {split: tasks(split) for split in ("train", "eval")}
    kinds = ("cancel", "return", "exchange", "address", "tracking", "too late")

    assert Counter(t.metadata["kind"] for t in found["train"]) == dict.fromkeys(kinds, 4)
    assert Counter(t.metadata["kind"] for t in found["eval"]) == dict.fromkeys(kinds, 2)
    assert not {t.metadata["email"] for t in found["train"]} & {t.metadata["email"] for t in found["eval"]}
    assert len({t.metadata["instruction"] for t in (*found["train"], *found["eval"])}) == 36
    expected = load_object(f"{HERE}/service.py:expected")
    for task in (*found["train"], *found["eval"]):
        changed = expected(task.metadata, 0).state != expected({"actions": []}, 0).state
        assert changed == bool(task.metadata["actions"])


async def test_the_state_and_the_words_both_count():
    task = task_of("cancel")
    [action], [amount] = task.metadata["actions"], task.metadata["outputs"]
    act = call(action["name"], **action["arguments"])

    silent = await play(task, [act, "Done."])
    idle = await play(task, [f"You get {amount}."])
    wrong = await play(task, [call("cancel_order", order="W1002", reason="no longer needed"), act, f"{amount}"])
    other = await play(task, [call("cancel_order", order="W1004", reason="no longer needed"), act, f"{amount}"])

    assert silent.reward_parts == {"state": 1.0, "said": 0.0}
    assert idle.reward_parts == {"state": 0.0, "said": 1.0}
    assert (wrong.reward, other.reward) == (1.0, 0.0), "a refused action changes nothing, another order does"
    assert "W1002 is shipped" in wrong.messages[3]["content"]


async def test_a_guess_of_the_status_is_no_answer():
    t = await play(task_of("too late"), ["It is either shipped or delivered or pending."])

    assert t.reward == 0.0


async def test_an_episode_goes_on_from_its_snapshot():
    task = task_of("return")
    [action] = task.metadata["actions"]
    async with EnvFactory(ENV) as envs:
        first, second = envs.make(), envs.make()
        await rollout(first, task, ["Which e-mail?", call(action["name"], **action["arguments"]), "Is that right?"][:2],
                      limits=Limits(turns=2))  # fmt: skip
        second.task = task
        second.restore(first.snapshot())

        assert second.shop.state == first.shop.state != type(first.shop)(0).state
        assert second.user.messages == first.user.messages
        assert (await second.user.hear("Anything else?")).text == "Yes, please."


async def test_an_endpoint_may_play_the_customer():
    with chat_server(lambda messages, tools: "###STOP###" if len(messages) > 2 else "Where is my order?") as server:
        user = {"speaker": {"base_url": server.url, "model": "m"}}
        t = await play(task_of("tracking"), ["Somewhere."], {"user": user})

    assert t.messages[1]["content"] == "Where is my order?"
    assert "You want to know the tracking number" in server.requests[0]["messages"][0]["content"]
    assert t.info["user"]["requests"] == 2


def test_the_examples_configurations_are_valid():
    config = TrainConfig.make(**yaml.safe_load((HERE / "train.yaml").read_text()), out="run")
    slime = SlimeConfig.parse("slime.yaml", yaml.safe_load((HERE / "slime.yaml").read_text())["agentrl"])

    assert config.env == slime.env == "examples/customer_service/service.py:CustomerService"
    assert EnvFactory(ENV, slime.env_config).config.user.speaker.model == "Qwen/Qwen3-8B"


def test_tasks_are_the_same_each_time():
    assert tasks() == tasks()
    assert isinstance(tasks()[0], Task)
