"""verifiers' own `run_episode` with agentrl's door, and a model behind an OpenAI API."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from agentrl.hosts.verifiers import environment
from agentrl.testing.chat_server import chat_server
from tests.hosts.hosting import spoken


async def play(env, count, reply, **settings):
    """The first tasks of an Env, each with the episode that verifiers records."""
    name = f"tests_hosts_{getattr(env, '__name__', 'env').lower()}_vf"
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

    module = ModuleType(name)
    module.Taskset, module.Harness = environment(env, **settings)
    module.__all__ = ["Taskset", "Harness"]
    module.__spec__ = type(sys.__spec__)(name, None)
    sys.modules[name] = module
    agent = {"harness": {"id": name}, "runtime": {"type": "subprocess"}}
    host = SingleAgentEnv(SingleAgentEnvConfig.model_validate({"taskset": {"id": name}, "agent": agent}))
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


def is_part(branch, branches):
    """Whether a longer branch begins with the same messages: an agent sent an empty reply back in another form."""
    return any(len(other) > len(branch) and other[: len(branch)] == branch for other in branches)


async def conversations(case, count):
    """Task id, seed of the policy, conversations, reward and failure of each episode."""
    seed = 0
    while count > 0:
        for task, episode in await play(case.env, count, spoken(case.reply, seed), **case.all_settings()):
            (trace,) = episode.traces
            errors = [*(trace.errors or ()), *(episode.errors or ())]
            reward = None if errors else trace.info["agentrl"]["reward"] or 0.0
            count -= 1
            branches = [[plain(message) for message in branch.messages] for branch in trace.branches]
            whole = [branch for branch in branches if not is_part(branch, branches)]
            yield task.data.id, seed, whole, reward, str(errors or "")
        seed += 1
