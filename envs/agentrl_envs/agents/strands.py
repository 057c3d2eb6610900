"""Agents of strands-agents."""

from __future__ import annotations

from typing import Any, ClassVar

from agentrl import AgentEnv, Endpoint, SessionOptions, Task
from agentrl.types import JSON
from agentrl_envs.agents.openai_agents import asked
from agentrl_envs.agents.start import PATIENCE_S
from agentrl_envs.agents.versions import CLIENTS


class StrandsAgents(AgentEnv):
    """A task, played by an agent of strands-agents. Write `agent` and `score`.

    class Search(StrandsAgents):
        def agent(self, task, model):
            return Agent(model=model, tools=[search], system_prompt="Search, then answer.", callback_handler=None)
    """

    session = SessionOptions(images="omit", replies=100)
    tested: ClassVar[tuple[str, ...]] = (CLIENTS["strands-agents"].version,)

    def agent(self, task: Task, model: Any, /) -> Any:
        """The agent with `model`, which is trained."""
        raise NotImplementedError(f"{type(self).__name__} has no agent")

    async def run(self, task: Task, endpoint: Endpoint) -> JSON:
        from strands.models.openai import OpenAIModel

        client = {"base_url": endpoint.openai, "api_key": endpoint.key, "timeout": PATIENCE_S}
        model = OpenAIModel(client_args=client, model_id=endpoint.model)
        return str(await self.agent(task, model).invoke_async(asked(task)))
