"""An Env whose tools come from an MCP server: each episode has its own server process, which talks over stdin and
stdout.

    pip install mcp
    agentrl play examples/mcp_tools/env.py:McpTools --player examples/mcp_tools/env.py:gold \\
        --data examples/mcp_tools/tasks.jsonl --set 'env_config.args=[examples/mcp_tools/server.py]'
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

from mcp import ClientSession, StdioServerParameters, stdio_client
from pydantic import BaseModel

from agentrl import Env, Observation, Task, ToolCall, ToolError, ToolSpec, Trajectory
from agentrl.testing import call


class Server(BaseModel):
    command: str = sys.executable
    args: list[str]


class McpTools(Env):
    config: Server

    async def reset(self, task: Task) -> Observation:
        server = StdioServerParameters(command=self.config.command, args=self.config.args)
        streams = await self.enter(stdio_client(server))  # ended, with its process, when the episode is over
        self.session = await self.enter(ClientSession(*streams))
        await self.session.initialize()
        self.listed = (await self.session.list_tools()).tools
        return task.prompt

    def tools(self) -> Sequence[ToolSpec]:
        return [{"name": t.name, "description": t.description or "", "parameters": t.input_schema} for t in self.listed]

    async def exec_tool(self, call: ToolCall) -> str:
        result = await self.session.call_tool(call.name, dict(call.arguments))
        text = "\n".join(getattr(block, "text", f"[{block.type}]") for block in result.content)
        if result.is_error:
            raise ToolError(text)
        return text

    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.answer == self.task.label)


def gold(task: Task) -> Generator[object, str, None]:
    """Looks up the answer, then writes the answer."""
    country = str(task.prompt).removesuffix("?").rsplit(maxsplit=1)[-1]
    yield call("capital", country=country)
    yield str(task.label)
