"""Agents of openai-agents."""

from __future__ import annotations

from typing import Any, ClassVar

from agentrl import AgentEnv, Endpoint, SessionOptions, Task
from agentrl.types import JSON, Raw
from agentrl_envs.agents.start import PATIENCE_S
from agentrl_envs.agents.versions import CLIENTS


class OpenAIAgents(AgentEnv):
    """A task, played by an agent of openai-agents. Write `agent` and `score`.

    class Search(OpenAIAgents):
        def agent(self, task, model):
            return Agent(name="search", instructions="Search, then answer.", tools=[search], model=model)
    """

    session = SessionOptions(images="omit", replies=100)
    max_turns: ClassVar[int] = 50
    tested: ClassVar[tuple[str, ...]] = (CLIENTS["openai-agents"].version,)

    def agent(self, task: Task, model: Any, /) -> Any:
        """The agent with `model`, which is trained."""
        raise NotImplementedError(f"{type(self).__name__} has no agent")

    async def run(self, task: Task, endpoint: Endpoint) -> JSON:
        from agents import OpenAIResponsesModel, RunConfig, Runner
        from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=endpoint.openai, api_key=endpoint.key, timeout=PATIENCE_S) as client:
            model = OpenAIResponsesModel(model=endpoint.model, openai_client=client)
            agent, quiet = self.agent(task, model), RunConfig(tracing_disabled=True)
            try:
                done = await Runner.run(agent, asked(task), max_turns=self.max_turns, run_config=quiet)
            except (MaxTurnsExceeded, ModelBehaviorError):  # the model's own: it is trained on
                return None
        return str(done.final_output)


def asked(task: Task) -> str:
    """The task's prompt as text."""
    if isinstance(task.prompt, str):
        return task.prompt
    if isinstance(task.prompt, Raw):
        return task.prompt.text
    return "\n\n".join(str(message.get("content", "")) for message in task.prompt)
