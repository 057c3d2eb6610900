"""verifiers' own `run_episode` with agentrl's door, and a model behind an OpenAI API."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from agentrl.hosts.verifiers import environment
from agentrl.testing.chat_server import chat_server
from tests.hosts.hosting import spoken

MODULE = "tests_hosts_weather_vf"


async def play(env, count, reply, **settings):
    """The first tasks of an Env, each with the episode that verifiers records."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

    module = ModuleType(MODULE)
    module.Taskset, module.Harness = environment(env, **settings)
    module.__all__ = ["Taskset", "Harness"]
    module.__spec__ = type(sys.__spec__)(MODULE, None)
    sys.modules[MODULE] = module
    agent = {"harness": {"id": MODULE}, "runtime": {"type": "subprocess"}}
    host = SingleAgentEnv(SingleAgentEnvConfig.model_validate({"taskset": {"id": MODULE}, "agent": agent}))
    os.environ.setdefault("PRIME_API_KEY", "none")
    with chat_server(reply) as server:
        context = ModelContext("scripted", EvalClientConfig(base_url=server.url))
        async with host.serving():
            return [(task, await host.run_episode(task, context)) for task in list(host.taskset)[:count]]


def plain(message):
    """A message in the words that both sides use."""
    message = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    calls = message.get("tool_calls") or ()
    names = [(call.get("function") or call)["name"] for call in calls]
    return message["role"], (message.get("content") or "").strip(), names


async def conversations(case, count):
    """Task id, seed of the policy, messages, reward and failure of each episode."""
    seed = 0
    while count > 0:
        for task, episode in await play(case.env, count, spoken(case.reply, seed), **case.all_settings()):
            (trace,) = episode.traces
            errors = [*(trace.errors or ()), *(episode.errors or ())]
            reward = None if errors else trace.info["agentrl"]["reward"] or 0.0
            count -= 1
            yield task.data.id, seed, [plain(message) for message in trace.messages], reward, str(errors or "")
        seed += 1
