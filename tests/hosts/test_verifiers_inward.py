"""The example that plays an environment of verifiers in agentrl: rewards are those of verifiers' own runner."""

from __future__ import annotations

import re
import sys
from random import Random

import pytest

from agentrl import EnvFactory, EpisodeOptions, InfraError, Limits, run_episode
from agentrl.testing.chat_server import chat_server
from tests.hosts.conftest import need
from tests.hosts.hosting import Policy
from tests.house import ROOT

need("verifiers")

FOLDER = ROOT / "examples" / "verifiers"
ENV = f"{FOLDER}/env.py:Verifiers"
CAPITALS = ["Paris", "Madrid", "Rome", "Tokyo", "Cairo", "Lima", "a city of the north"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def answer(text: str, rng: Random) -> str:
    """A capital that the text and a number decide."""
    return Random(re.findall(r"capital of (\w+)", text)[-1] + str("sure" in text)).choice(CAPITALS)


@pytest.fixture(autouse=True)
def taskset(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.modules.pop("capitals_vf", None)


async def theirs():
    """The rewards of verifiers' own runner."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    async with EnvFactory(ENV, {"taskset": "capitals_vf"}) as envs:
        host = envs.shared
        with chat_server(lambda messages, tools: answer(str(messages), Random())) as server:
            context = ModelContext("scripted", EvalClientConfig(base_url=server.url, api_key_var="AGENTRL_NO_KEY"))
            return [(await host.run_episode(task, context)).traces[0].reward for task in host.taskset]


async def test_rewards_are_those_of_verifiers(renderer):
    rewards, expected = {}, await theirs()
    async with EnvFactory(ENV, {"taskset": "capitals_vf"}) as envs:
        for split in ("train", "eval"):
            for task in envs.cls.tasks(envs.config, split):
                options = EpisodeOptions(limits=Limits(turns=4))
                engine = Policy(renderer, answer)
                t = await run_episode(envs.make(), task, engine=engine, renderer=renderer, options=options)
                assert t.failure is None, t.failure
                assert (t.turn_count, len(t.segments)) == (2, 1)
                assert t.ledger.sampled == t.ledger.trained > 0
                rewards[task.seed] = t.reward
    assert [rewards[number] for number in sorted(rewards)] == expected
    assert len({*expected}) > 1


async def test_an_error_of_verifiers_is_the_environments(renderer, monkeypatch):
    async with EnvFactory(ENV, {"taskset": "capitals_vf"}) as envs:
        (task, *_) = envs.cls.tasks(envs.config, "train")

        async def broken(*parts, **words):
            raise OSError("no disk")

        monkeypatch.setattr(sys.modules["capitals_vf"].TwoQuestions, "launch", broken)
        t = await run_episode(envs.make(), task, engine=Policy(renderer, answer), renderer=renderer)
        assert "no disk" in t.failure.error
        assert InfraError.__name__ in t.failure.error
