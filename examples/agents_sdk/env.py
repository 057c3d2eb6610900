"""The assistant as an environment: its tasks, the address of its model, and its reward."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents import OpenAIChatCompletionsModel, RunConfig, Runner, ToolCallOutputItem
from agents.exceptions import ModelBehaviorError
from assistant import assistant
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentrl import AgentEnv, Endpoint, Task, Trajectory


class Assistant(AgentEnv):
    shared: DefaultAsyncHttpxClient

    @classmethod
    @asynccontextmanager
    async def share(cls, config: None) -> AsyncIterator[DefaultAsyncHttpxClient]:
        async with DefaultAsyncHttpxClient(timeout=3600) as http:  # connections for all episodes
            yield http

    async def run(self, task: Task, endpoint: Endpoint) -> dict:
        client = AsyncOpenAI(base_url=endpoint.openai, api_key=endpoint.key, http_client=self.shared)
        config = RunConfig(model=OpenAIChatCompletionsModel(endpoint.model, client), tracing_disabled=True)
        try:
            done = await Runner.run(assistant, task.prompt, run_config=config)
        except ModelBehaviorError:  # it called a tool that does not exist: a mistake of the model, so no failure
            return {"answer": "", "read": ""}
        read = [item.output for item in done.new_items if isinstance(item, ToolCallOutputItem)]
        return {"answer": done.final_output, "read": "\n".join(read)}

    def score(self, trajectory: Trajectory) -> float:
        """The reward: 1.0 for the right answer if the assistant read it in a search."""
        if self.result is None:  # a limit ended the episode
            return 0.0
        found = re.search(rf"\b{re.escape(self.task.label)}\b", self.result["read"])
        return float(found is not None and self.result["answer"] == f"Answer: {self.task.label}")
