"""Environments with OpenEnv's protocol: reset, step and state over a WebSocket.

    agentrl train agentrl_envs.adapters.openenv:OpenEnv --set env_config.url=http://127.0.0.1:8000

Only a server of OpenEnv is needed, not the package. The server's schema of actions decides the form of a turn:

- tools, if the environment has MCP tools: the model calls them;
- text, if an action has a single text field to fill in: the model's turn is the text;
- else a tool, `act`, whose arguments are the action's fields.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from agentrl import (
    Action,
    CallError,
    ConfigError,
    Env,
    InfraError,
    StepResult,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSpec,
    Trajectory,
    uncounted,
)
from agentrl.errors import one_line
from agentrl.types import JSON, Observation
from agentrl_envs.adapters.suites import seeded

_BASE = {"metadata", "type"}
"""Fields that OpenEnv adds to actions; the model is not asked for these fields."""
_PAUSE_S = 0.2
_LARGEST = 100 << 20
"""The most bytes of a message, as in OpenEnv's client."""


class OpenEnvConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    url: str = Field(pattern="^(https?|wss?)://")
    """The server, such as http://127.0.0.1:8000."""
    prompt: str = ""
    """Text in front of the first observation."""
    reset: dict[str, Any] = {}
    """Arguments of each reset, in addition to the seed and the task's `metadata.reset`."""
    field: str | None = None
    """The field of an action that gets the model's text. None: the only text field, if no other field is required."""
    message_s: float = Field(60.0, gt=0)
    """Seconds that the server has to respond to a message."""
    wait_s: float = Field(600.0, gt=0)
    """Seconds to wait for a session if all sessions of the server (its `max_concurrent_envs`) are in use."""


class OpenEnv(Env):
    """An environment of an OpenEnv server. The reward is the sum of the steps' rewards.

    Tasks differ by their seeds, and need no data file. If the server refuses an action, the model reads the
    reason. Any other error of the server is a failure of the environment.
    """

    config: OpenEnvConfig
    shared: Mapping[str, Any]
    """The schema of the server's actions."""
    _tools: Mapping[str, ToolSpec] = {}
    _over = False

    @classmethod
    async def share(cls, config: OpenEnvConfig) -> Mapping[str, Any]:
        url = _over("http", config.url) + "/schema"
        timeout = aiohttp.ClientTimeout(total=config.message_s)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as client, client.get(url) as answer:
                answer.raise_for_status()
                schema = dict((await answer.json())["action"])
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError, TypeError, ValueError) as exc:
            raise ConfigError(
                f"no OpenEnv server answers at {url}: {one_line(exc)[:300]}; start one, or check the URL"
            ) from exc
        if config.field is not None and config.field not in schema.get("properties", {}):
            fields = ", ".join(schema.get("properties", {}))
            raise ConfigError(f"env_config.field: an action has no field {config.field!r}; it has: {fields}")
        return schema

    @classmethod
    def needs(cls, config: OpenEnvConfig, episodes: int) -> Sequence[str]:
        return [f"an OpenEnv server at {config.url}, for {episodes} sessions at a time"]

    @classmethod
    def tasks(cls, config: OpenEnvConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        return seeded([config.url], split)

    async def reset(self, task: Task) -> Observation:
        self._session = await self.enter(_opened(self.config))
        self._field = self.config.field or _text_field(self.shared)
        self._tools = await self._session.tools()
        if not self._tools and self._field is None:
            self._tools = {"act": _act(self.shared)}
        more = task.metadata.get("reset") or {}
        answer = await self._session.ask("reset", {"seed": task.seed % (1 << 31), **self.config.reset, **more})
        prompt = task.prompt if task.prompt != self.config.url else ""
        return "\n\n".join(filter(None, (self.config.prompt, str(prompt), _shown(answer)))) or "Begin."

    def tools(self) -> Sequence[ToolSpec]:
        return [*self._tools.values()]

    async def step(self, action: Action) -> StepResult:
        if self._tools:
            return await self.run_tools(action) if action.calls else StepResult(done=True)
        try:
            answer = await self._session.ask("step", {str(self._field): action.content})
        except ToolError as exc:
            return StepResult(f"Error: {exc}", reward=0.0)
        done = bool(answer.get("done"))
        return StepResult(_shown(answer) or ("" if done else "(Nothing.)"), reward=_reward(answer), done=done)

    async def exec_tool(self, call: ToolCall) -> ToolResult:
        if call.name not in self._tools:
            raise CallError(f"there is no tool {call.name!r}; the tools are: {', '.join(self._tools)}")
        if self._over:
            raise ToolError("the episode is over")
        arguments = dict(call.arguments)
        is_act = self._tools.keys() == {"act"}
        sent = arguments if is_act else {"type": "call_tool", "tool_name": call.name, "arguments": arguments}
        answer = await self._session.ask("step", sent)
        self._over = bool(answer.get("done"))
        reward, error = _reward(answer), dict(answer.get("observation") or {}).get("error")
        if is_act or not error:
            return ToolResult(_shown(answer), reward=reward, done=self._over)
        if error.get("error_type") == "invalid_args" and not (reward or self._over):
            raise CallError(str(error.get("message")))
        return ToolResult(f"Error: {error.get('message')}", reward=reward, done=self._over)

    def score(self, trajectory: Trajectory) -> float:
        return sum(trajectory.step_rewards, 0.0)


class _OpenEnvSession:
    """A WebSocket, and the environment that the server opened for the WebSocket. A message is sent only after the
    response to the message before."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, config: OpenEnvConfig) -> None:
        self._socket, self._config = socket, config
        self._lock = asyncio.Lock()

    async def tools(self) -> dict[str, ToolSpec]:
        """The environment's MCP tools, by name; empty without an MCP server."""
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        try:
            answer = await self.ask("mcp", request)
        except (InfraError, ToolError):
            return {}
        listed = (answer.get("result") or {}).get("tools") or []
        return {tool["name"]: _tool(tool) for tool in listed}

    async def ask(self, kind: str, data: Mapping[str, JSON] | None = None) -> dict[str, Any]:
        """Send a message, and return the data of the server's response. Raises ToolError for a refused action,
        InfraError for any other error."""
        try:
            async with self._lock, asyncio.timeout(self._config.message_s):
                await self._socket.send_json({"type": kind} | ({} if data is None else {"data": data}))
                message = await self._socket.receive_json()
        except (aiohttp.ClientError, TimeoutError, OSError, TypeError, ValueError) as exc:
            raise InfraError(
                f"the OpenEnv server at {self._config.url} does not answer {kind}: {one_line(exc)}"
            ) from exc
        answer = dict(message.get("data") or {})
        if message.get("type") != "error":
            return answer
        text = f"{answer.get('message')}{_problems(answer.get('errors'))}"
        if answer.get("code") == "VALIDATION_ERROR":
            raise CallError(f"the action is refused: {text}")
        if answer.get("code") == "CAPACITY_REACHED":
            raise _FullError(text)
        raise InfraError(f"the OpenEnv server at {self._config.url} cannot {kind}: {answer.get('code')}: {text}")


class _FullError(InfraError):
    """All sessions of the server are in use."""


@asynccontextmanager
async def _opened(config: OpenEnvConfig) -> AsyncIterator[_OpenEnvSession]:
    """Open a session. If all sessions of the server are in use, the call waits, and the episode's deadline is
    paused."""
    url = _over("ws", config.url) + "/ws"
    async with aiohttp.ClientSession() as client:
        with uncounted():
            socket = await _connected(client, url, config)
        session = _OpenEnvSession(socket, config)
        try:
            yield session
        finally:
            async with asyncio.timeout(config.message_s):
                if not socket.closed:
                    await socket.send_json({"type": "close"})
                await socket.close()


async def _connected(client: aiohttp.ClientSession, url: str, config: OpenEnvConfig) -> aiohttp.ClientWebSocketResponse:
    clock = asyncio.get_running_loop().time
    until = clock() + config.wait_s
    while True:
        try:
            socket = await client.ws_connect(url, max_msg_size=_LARGEST)
            await _OpenEnvSession(socket, config).ask("state")
        except _FullError as exc:
            await socket.close()
            if clock() > until:
                raise InfraError(
                    f"the OpenEnv server at {config.url} has had no session left for {config.wait_s:g} s: {exc}; "
                    "raise its max_concurrent_envs"
                ) from exc
            await asyncio.sleep(_PAUSE_S)
        except (aiohttp.ClientError, OSError) as exc:
            raise InfraError(f"the OpenEnv server at {config.url} does not answer: {one_line(exc)}") from exc
        except InfraError:
            if socket.closed:
                raise
            return socket  # the environment has no state before its reset
        else:
            return socket


def _over(scheme: str, url: str) -> str:
    """The URL with `scheme` instead of http. The `s` of https is kept."""
    protocol, _, rest = url.partition("://")
    return f"{scheme}{'s' if protocol.endswith('s') else ''}://{rest.rstrip('/')}"


def _text_field(schema: Mapping[str, Any]) -> str | None:
    """The name of the only text field among the required fields of an action or, if no field is required, among all
    fields. None if there is no such field, or if another field is required."""
    fields = {name: field for name, field in schema.get("properties", {}).items() if name not in _BASE}
    texts = [name for name, field in fields.items() if field.get("type") == "string" and "enum" not in field]
    required = set(schema.get("required", ())) - _BASE
    if required:
        texts = [name for name in texts if name in required]
    return texts[0] if len(texts) == 1 and required <= set(texts) else None


def _act(schema: Mapping[str, Any]) -> ToolSpec:
    parameters = {
        key: value for key, value in schema.items() if key not in ("title", "description", "additionalProperties")
    }
    parameters["properties"] = {
        name: field for name, field in schema.get("properties", {}).items() if name not in _BASE
    }
    parameters["required"] = [name for name in schema.get("required", ()) if name not in _BASE]
    description = str(schema.get("description") or "Take one action in the environment.")
    return {"type": "function", "function": {"name": "act", "description": description, "parameters": parameters}}


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    schema = tool.get("inputSchema") or tool.get("input_schema") or {"type": "object", "properties": {}}
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": schema}
    return {"type": "function", "function": function}


def _shown(answer: Mapping[str, Any]) -> str:
    """The observation as text: the value of a text field without other fields, or the result of a tool, or else
    JSON."""
    observed = {key: value for key, value in dict(answer.get("observation") or {}).items() if value is not None}
    if "result" in observed and "tool_name" in observed:
        return _result(observed["result"])
    values = [*observed.values()]
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(observed, ensure_ascii=False) if observed else ""


def _result(result: Any) -> str:
    """The result of an MCP tool as text: the joined text blocks, or else the data as JSON."""
    if not isinstance(result, Mapping):
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    texts = [str(block["text"]) for block in result.get("content") or () if block.get("type") == "text"]
    return "\n".join(texts) if texts else json.dumps(result.get("data", result), ensure_ascii=False)


def _reward(answer: Mapping[str, Any]) -> float | None:
    return None if answer.get("reward") is None else float(answer["reward"])


def _problems(errors: Any) -> str:
    named = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}" for error in errors or ()]
    return f" ({'; '.join(named)})" if named else ""
