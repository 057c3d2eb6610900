"""Agents for the tests: a plain loop over HTTP, and what may go wrong with one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from agentrl import AgentEnv, Endpoint, Task, Trajectory

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add a number.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}


class RefusedByGateway(Exception):
    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status}: {body['error']['message']}")
        self.status, self.body = status, body


async def ask(endpoint: Endpoint, messages: Sequence[Any], **body: Any) -> dict[str, Any]:
    """One request of Chat Completions. Returns the assistant's message."""
    asked = {"model": endpoint.model, "messages": list(messages), **body}
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{endpoint.openai}/chat/completions", json=asked) as answer,
    ):
        told = await answer.json()
        if answer.status != 200:
            raise RefusedByGateway(answer.status, told)
        return told["choices"][0]["message"]


class Adder(AgentEnv):
    """Adds up what the model says, by a tool of its own."""

    tool_s = 0.0

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        self.total, self.endpoint = 0, endpoint
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        while True:
            said = await ask(endpoint, messages, tools=[ADD])
            messages.append(said)
            if not said.get("tool_calls"):
                return {"total": self.total, "said": said["content"]}
            for call in said["tool_calls"]:
                await asyncio.sleep(self.tool_s)
                self.total += json.loads(call["function"]["arguments"])["n"]
                result = {"role": "tool", "tool_call_id": call["id"], "content": f"the sum is {self.total}"}
                messages.append(result)

    def score(self, trajectory: Trajectory) -> float:
        return float(self.total == self.task.label)


def doing(what: Callable[[AgentEnv, Task, Endpoint], Any]) -> type[AgentEnv]:
    """An agent whose `run` is this function."""

    class Doing(AgentEnv):
        async def run(self, task: Task, endpoint: Endpoint) -> Any:
            return await what(self, task, endpoint)

        def score(self, trajectory: Trajectory) -> float:
            return 1.0

    return Doing
