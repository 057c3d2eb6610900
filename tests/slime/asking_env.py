"""An agent for the tests under slime: it looks a capital up, and has a title written in a conversation of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from agentrl import AgentEnv, Endpoint, InfraError, Task, Trajectory
from tests.gateway.agents import Adder, ask
from tests.slime.event_log import EventLog

CAPITALS = {"France": "Paris", "Spain": "Madrid"}
LOOK = {
    "type": "function",
    "function": {"name": "capital", "parameters": {"type": "object", "properties": {"country": {"type": "string"}}}},
}
ENDED = EventLog("AGENTRL_TEST_ENDED")
"""One entry for each `run` that ended, with how it ended."""


class Asking(AgentEnv):
    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        try:
            answer = await self.look_up(task, endpoint)
        except asyncio.CancelledError:
            ENDED.append("cancelled")
            raise
        except Exception as exc:
            ENDED.append(str(exc))
            raise
        ENDED.append("done")
        return answer

    async def look_up(self, task: Task, endpoint: Endpoint) -> Any:
        if task.metadata.get("break"):
            raise InfraError("the world broke")
        title = [{"role": "user", "content": f"A title, please: {task.prompt} unknown"}]
        await ask(endpoint, title)
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        while True:
            said = await ask(endpoint, messages, tools=[LOOK])
            messages.append(said)
            if not said.get("tool_calls"):
                return said["content"]
            for call in said["tool_calls"]:
                await asyncio.sleep(task.metadata.get("tool_s", 0))
                found = next((city for country, city in CAPITALS.items() if country in task.prompt), "unknown")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})

    def score(self, trajectory: Trajectory) -> float:
        return float(self.result == self.task.label)


class AddingAgent(Adder):
    """Adds up the numbers that the model says, each slowly."""

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        self.tool_s = task.metadata.get("slow", 0.0)
        return await super().run(task, endpoint)
