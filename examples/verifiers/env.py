"""An environment of verifiers, trained by agentrl: verifiers runs its own episode, and asks agentrl's endpoint.

The harness, the tools, the users and the judges stay those of verifiers; the tokens are agentrl's. `share` opens the
environment, `run` plays one of its episodes, and `score` returns its reward. Anything that asks a model at an address
and ends with a number fits the same form.

    pip install verifiers==0.4.0     # in an environment of its own
    agentrl train examples/verifiers/env.py:Verifiers --set env_config.taskset=capitals_vf
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from agentrl import AgentEnv, Endpoint, InfraError, Task, Trajectory


class VerifiersConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    taskset: str
    """The id of the taskset: the name of its module."""
    options: dict[str, Any] = {}
    """Further settings of the taskset, in verifiers' words."""
    env: dict[str, Any] = {}
    """Further settings of the environment, in verifiers' words, such as the model of an agent."""
    agent: str = ""
    """The agent whose rewards count; empty: the sum of all, which is 0 in a game that one wins and another loses."""
    harness: str = ""
    """The id of the harness; empty: the taskset's own, or else verifiers' default."""
    runtime: dict[str, Any] = {"type": "subprocess"}
    """The runtime of the agents, in verifiers' words."""
    held_out: int = 5
    """Every so many tasks, one is held out."""


class Verifiers(AgentEnv):
    config: VerifiersConfig
    shared: vf.Env

    @classmethod
    def tasks(cls, config: VerifiersConfig, split: str) -> Iterator[Task]:
        for number, task in enumerate(opened(config).taskset, 1):
            if (number % config.held_out == 0) == (split == "eval"):
                yield Task(id=f"{config.taskset}-{number}", prompt=str(task.data.prompt or ""), seed=number)

    @classmethod
    @asynccontextmanager
    async def share(cls, config: VerifiersConfig) -> AsyncIterator[vf.Env]:
        env = opened(config)
        async with env.serving():
            yield env

    async def run(self, task: Task, endpoint: Endpoint) -> float:
        """Play the episode in verifiers. Returns the reward."""
        theirs = next(islice(self.shared.taskset, task.seed - 1, None))
        client = EvalClientConfig(base_url=f"{endpoint.url}/s/{endpoint.key}/v1", api_key_var="AGENTRL_NO_KEY")
        episode = await self.shared.run_episode(theirs, ModelContext(endpoint.model, client))
        if errors := [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]:
            raise InfraError(f"verifiers: {errors[0]}")
        return sum(trace.reward for trace in episode.traces if self.config.agent in ("", trace.agent.name))

    def score(self, trajectory: Trajectory) -> float:
        """The reward of verifiers; 0 if a limit ended the episode before."""
        return self.result or 0.0


def opened(config: VerifiersConfig) -> vf.Env:
    settings: dict[str, Any] = {**config.env, "taskset": {**config.options, "id": config.taskset}}
    harness = {"harness": {"id": config.harness}} if config.harness else {}
    for agent in agent_config_fields(resolve_env_config(settings)):
        settings[agent] = {"runtime": config.runtime, **harness, **settings.get(agent, {})}
    return load_environment(resolve_env_config(settings))
