"""The door to verl, against the interface of the real package: its agent loop and its output, on a scripted server."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import pytest

from agentrl import ConfigError, EngineError, EpisodeOptions, Limits
from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn, differences
from agentrl.hosts.turned import HostedEnv
from agentrl.hosts.verl import VERSION, VerlEngine, agent_loop
from agentrl.models import load_tokenizer
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, BreaksAtReset, Masks, TwoTools, Weather
from tests.hosts.hosting import Policy

need("verl")

LIMITS = {"turns": 6, "max_tokens_per_turn": 40}
PROMPT, RESPONSE = 300, 160
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_version():
    assert version("verl") == VERSION, "the door is written for another version: read its source again"


class Servers:
    """verl's LLMServerClient. Keeps each turn."""

    def __init__(self, renderer, seed) -> None:
        self.policy, self.seed, self.turns = Policy(renderer), seed, []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        from verl.workers.rollout.replica import TokenOutput

        assert (sampling_params["temperature"], sampling_params["logprobs"]) == (0.5, True)
        params = {"max_new_tokens": sampling_params["max_tokens"], "sampling_seed": self.seed}
        said = await self.policy.generate(prompt_ids, {**params, "stop_token_ids": sampling_params["stop_token_ids"]})
        self.turns.append(HostTurn(prompt_ids, said.tokens, said.log_probs, said.finish_reason))
        return TokenOutput(token_ids=[*said.tokens], log_probs=[*said.log_probs], stop_reason="completed")


def loop_of(cls, servers):
    """An agent loop as verl's worker makes it, without the parts that need a configured trainer."""
    loop = object.__new__(agent_loop(cls, limits=LIMITS))
    loop.server_manager, loop.tokenizer, loop.apply_chat_template_kwargs = servers, load_tokenizer("tiny"), {}
    loop.rollout_config = SimpleNamespace(prompt_length=PROMPT, response_length=RESPONSE)
    return loop


@pytest.mark.parametrize("cls", [Weather, Masks, TwoTools, Breaks, BreaksAtReset])
async def test_each_output_is_the_episode(cls, renderer):
    cls.open, rewards = 0, []
    options = EpisodeOptions(limits=Limits(tokens=RESPONSE, **LIMITS))
    for seed, task in enumerate(HostedEnv(cls).tasks()[:16]):
        servers = Servers(renderer, seed)
        output = await loop_of(cls, servers).run({"temperature": 0.5}, task_id=task.id, raw_prompt=[])
        batch = output.as_dict()
        before = [0] * len(output.prompt_ids)
        mask, log_probs = batch["response_mask"].tolist(), batch["rollout_log_probs"].tolist()
        row = HostRow(output.prompt_ids + batch["responses"].tolist(), before + mask, before + log_probs)
        failed = cls in (Breaks, BreaksAtReset) and not any(mask)
        reward = None if failed else batch["rm_scores"][-1].item()
        host = HostEpisode(task, servers.turns, [row], reward)
        named = await differences(host, cls(), renderer, options=options, context_length=PROMPT + RESPONSE)
        assert [str(difference) for difference in named] == []
        assert batch["rm_scores"].sum().item() == (reward or 0.0)
        rewards.append(reward)
    assert (None in rewards) is (cls in (Breaks, BreaksAtReset))
    assert cls.open == 0


async def test_what_cannot_work_is_said_at_once(renderer):
    with pytest.raises(ConfigError, match='leave out thinking="strip"'):
        agent_loop(Weather, thinking="strip")
    loop = loop_of(Weather, Servers(renderer, 0))
    with pytest.raises(ConfigError, match="write the column task_id"):
        await loop.run({"temperature": 0.5}, raw_prompt=[])
    loop.rollout_config.prompt_length = 10
    with pytest.raises(ConfigError, match=r"raise data\.max_prompt_length"):
        await loop.run({"temperature": 0.5}, task_id="train-1")

    async def broken(**request):
        raise ConnectionError("gone")

    engine = VerlEngine(SimpleNamespace(generate=broken), {}, 100)
    with pytest.raises(EngineError, match="verl's server: ConnectionError: gone"):
        await engine.generate([1], {"max_new_tokens": 5})
