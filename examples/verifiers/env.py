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
from typing import Any

from pydantic import BaseModel, ConfigDict
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

from agentrl import AgentEnv, Endpoint, InfraError, Task, Trajectory


class VerifiersConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    taskset: str
    """The id of the taskset: the name of its module."""
    harness: str = ""
    """The id of the harness; empty: the taskset's module."""
    runtime: dict[str, Any] = {"type": "subprocess"}
    """The runtime of the agent, in verifiers' words."""
    held_out: int = 5
    """Every so many tasks, one is held out."""


class Verifiers(AgentEnv):
    config: VerifiersConfig
    shared: SingleAgentEnv

    @classmethod
    def tasks(cls, config: VerifiersConfig, split: str) -> Iterator[Task]:
        for number, task in enumerate(opened(config).taskset, 1):
            if (number % config.held_out == 0) == (split == "eval"):
                yield Task(id=f"{config.taskset}-{number}", prompt=str(task.data.prompt or ""), seed=number)

    @classmethod
    @asynccontextmanager
    async def share(cls, config: VerifiersConfig) -> AsyncIterator[SingleAgentEnv]:
        env = opened(config)
        async with env.serving():
            yield env

    async def run(self, task: Task, endpoint: Endpoint) -> float:
        """Play the episode in verifiers. Returns the reward."""
        theirs = [*self.shared.taskset][task.seed - 1]
        client = EvalClientConfig(base_url=f"{endpoint.url}/s/{endpoint.key}/v1", api_key_var="AGENTRL_NO_KEY")
        episode = await self.shared.run_episode(theirs, ModelContext(endpoint.model, client))
        if errors := [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]:
            raise InfraError(f"verifiers: {errors[0]}")
        return sum(trace.reward for trace in episode.traces)

    def score(self, trajectory: Trajectory) -> float:
        """The reward of verifiers; 0 if a limit ended the episode before."""
        return self.result or 0.0


def opened(config: VerifiersConfig) -> SingleAgentEnv:
    agent = {"harness": {"id": config.harness or config.taskset}, "runtime": config.runtime}
    settings = {"taskset": {"id": config.taskset}, "agent": agent}
    return SingleAgentEnv(SingleAgentEnvConfig.model_validate(settings))
