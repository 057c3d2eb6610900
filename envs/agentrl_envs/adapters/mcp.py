r"""Any MCP server as an Env: the model gets the server's tools.

    pip install mcp
    agentrl train agentrl_envs.adapters.mcp:MCP --data tasks.jsonl \
        --set env_config.command=uvx --set 'env_config.args=[mcp-server-sqlite, --db-path, "{folder}/shop.db"]'

Each episode has its own server, which talks over stdin and stdout, or its own session with a server at a URL.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl import CallError, ConfigError, Env, InfraError, Task, ToolCall, ToolError, ToolSpec, Trajectory
from agentrl._util.resources import SharedResource
from agentrl.errors import leaves, one_line
from agentrl.types import JSON, Observation
from agentrl_envs.adapters.suites import refuse_unknown, suite

_FOLDER = "{folder}"
_SAID = 600
"""The most characters of the end of a server's stderr in an error message."""

_rubbish: ContextVar[list[str] | None] = ContextVar("_rubbish", default=None)
"""A list for the first stdout line of this context's server that is not a message of the protocol."""


class McpServerConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    command: str | None = None
    """The program of a server that talks over stdin and stdout."""
    args: list[str] = []
    """Arguments of the command. `{folder}`, here and in `env` and `cwd`, is an empty folder of this episode."""
    env: dict[str, str] = {}
    """Environment variables of the server, in addition to PATH, HOME and similar variables."""
    cwd: str | None = None
    """The server's working folder. None: the run's folder."""
    url: str | None = None
    """The URL of a server that speaks streamable HTTP, instead of `command`."""
    key: str | None = None
    """The name of the environment variable that holds the bearer token for `url`."""

    @property
    def name(self) -> str:
        return self.url or " ".join([self.command or "", *self.args])


class MCPConfig(McpServerConfig):
    servers: dict[str, McpServerConfig] = {}
    """Servers by name. A task chooses a server by `metadata.server`."""
    only: list[str] = []
    """The names of the offered tools. Empty: all tools."""
    shared: bool = Field(False, validate_default=True)
    """Whether all episodes share a single server. Such a server must hold no state of an episode."""

    @model_validator(mode="after")
    def _one(self) -> MCPConfig:
        servers = [self] if self.command or self.url else []
        for server in (*servers, *self.servers.values()):
            if bool(server.command) == bool(server.url):
                raise ValueError("a server has either a command or a url")
        if not servers and not self.servers:
            raise ValueError("name a server: command, url or servers")
        return self


class MCP(Env):
    """Work with the tools of an MCP server. The reward is 1 if the model's last text is the task's label.

    `metadata.files` of a task, texts by path, are written into the episode's folder before the server starts. Tools are
    listed when the episode begins: tools that a server adds later are not offered. For another reward, name a function
    in the configuration (`reward: my_rewards:function`), or subclass and write `score`, with the folder in
    `self.folder`.
    """

    config: MCPConfig
    shared: dict[str, SharedResource[_McpSession]]
    folder: Path
    """The episode's folder, removed when the episode ends."""

    @classmethod
    @asynccontextmanager
    async def share(cls, config: MCPConfig) -> AsyncIterator[dict[str, SharedResource[_McpSession]]]:
        """Start each server once, so that a broken server is reported before the first token."""
        sessions = {}
        for name, server in _servers(config).items():
            sessions[name] = SharedResource(lambda server=server: _session(server, {}))  # type: ignore[misc]
        try:
            for name, server in _servers(config).items():
                await _prove(server, sessions[name], config)
                if not config.shared:
                    await sessions[name].close()
            yield sessions
        finally:
            for shared_session in sessions.values():
                await shared_session.close()

    @classmethod
    def needs(cls, config: MCPConfig, episodes: int) -> Sequence[str]:
        scope = "for all episodes" if config.shared else f"for each of {episodes} episodes"
        return [f"an MCP server {scope}: {server.name}" for server in _servers(config).values()]

    async def reset(self, task: Task) -> Observation:
        servers = _servers(self.config)
        name = str(task.metadata.get("server") or next(iter(servers)))
        refuse_unknown("MCP server", name, servers)
        files = task.metadata.get("files") or {}
        self._shared_session = self.shared[name] if self.config.shared else None
        if self._shared_session is not None:
            if files:
                raise ConfigError("a shared MCP server has no folder for a task's files; leave out env_config.shared")
            self._session = await self._shared_session.get()
        else:
            self._session = await self.enter(_session(servers[name], files))
        self.folder = self._session.folder
        self._listed = await self._session.tools(self.config.only)
        return task.prompt

    def tools(self) -> Sequence[ToolSpec]:
        return [*self._listed.values()]

    async def exec_tool(self, call: ToolCall) -> str:
        if call.name not in self._listed:
            raise CallError(f"there is no tool {call.name!r}; the tools are: {', '.join(self._listed)}")
        try:
            return await self._session.call(call.name, dict(call.arguments))
        except InfraError:
            if self._shared_session is not None:
                await self._shared_session.drop(self._session)
            raise

    def score(self, trajectory: Trajectory) -> float | None:
        label = self.task.label
        return None if label is None else float((trajectory.answer or "").strip() == str(label).strip())


class _McpSession:
    """A connection to a server."""

    def __init__(self, name: str, client: Any, folder: Path, last_words: Callable[[], str]) -> None:
        self.name, self.folder, self.last_words = name, folder, last_words
        self._client = client

    async def tools(self, only: Sequence[str]) -> dict[str, ToolSpec]:
        """Name of a tool -> its description, for the server's present tools. Raises ConfigError if a tool of `only` is
        missing."""
        listed, cursor = dict[str, ToolSpec](), None
        while True:
            page = await self._asked(self._client.list_tools(cursor=cursor))
            listed |= {tool.name: _spec(tool) for tool in page.tools}
            cursor = page.next_cursor
            if not cursor:
                break
        for name in only:
            refuse_unknown(f"tool of {self.name}", name, listed)
        return {name: listed[name] for name in only or listed}

    async def call(self, name: str, arguments: Mapping[str, JSON]) -> str:
        """The tool's result as text. Raises ToolError for the tool's errors, InfraError if the server is gone."""
        return _text(await self._asked(self._client.call_tool(name, arguments)))

    async def _asked(self, asking: Any) -> Any:
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND

        try:
            return await asking
        except MCPError as exc:
            if exc.code == CONNECTION_CLOSED:
                raise InfraError(f"the MCP server {self.name} is gone{self.last_words()}") from exc
            wrong = CallError if exc.code in (INVALID_PARAMS, METHOD_NOT_FOUND) else ToolError
            raise wrong(exc.message) from exc
        except (BrokenResourceError, ClosedResourceError) as exc:
            raise InfraError(f"the MCP server {self.name} is gone{self.last_words()}") from exc
        except (RuntimeError, ValueError) as exc:  # its result breaks the protocol, or its own schema
            raise ToolError(f"the tool's result cannot be read: {one_line(exc)[:_SAID]}") from exc


@asynccontextmanager
async def _session(server: McpServerConfig, files: Mapping[str, str]) -> AsyncIterator[_McpSession]:
    """Start a server, or a session with a server. Raises InfraError if the server does not respond."""
    suite("mcp", "mcp")
    from mcp import Client

    with tempfile.TemporaryDirectory(prefix="agentrl-mcp-") as temporary, tempfile.TemporaryFile("w+") as errors:
        folder, entered, rubbish = _written(temporary, files), False, list[str]()
        logging.getLogger("mcp.client.stdio").addFilter(_keep_rubbish)
        _rubbish.set(rubbish)

        def last_words() -> str:
            return _last_words(errors, rubbish)

        try:
            async with Client(_transport(server, folder, errors)) as client:
                entered = True
                yield _McpSession(server.name, client, folder, last_words)
        except Exception as exc:
            if entered:
                raise
            (first, *_) = leaves(exc)
            if isinstance(first, ConfigError):
                raise first from exc
            raise InfraError(
                f"the MCP server {server.name} does not answer: {one_line(first)[:_SAID]}{last_words()}"
            ) from exc


def _keep_rubbish(record: logging.LogRecord) -> bool:
    """Store the line that the client cannot read, and hide the client's log, which would print a traceback for each
    line."""
    lines, error = _rubbish.get(), record.exc_info[1] if record.exc_info else None
    if lines is None or not isinstance(error, ValidationError):
        return True
    if not lines:
        lines.append(str(error.errors()[0]["input"]))
    return False


def _transport(server: McpServerConfig, folder: Path, errors: IO[str]) -> Any:
    from mcp import StdioServerParameters, stdio_client

    if server.url is not None:
        return _over_http(server.url, server.key)

    def filled(text: str) -> str:
        return text.replace(_FOLDER, str(folder))

    cwd = filled(server.cwd) if server.cwd else None
    env = {name: filled(value) for name, value in server.env.items()}
    started = StdioServerParameters(command=server.command or "", args=[*map(filled, server.args)], env=env, cwd=cwd)
    return stdio_client(started, errlog=errors)  # type: ignore[arg-type]


@asynccontextmanager
async def _over_http(url: str, key: str | None) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    if key is not None and key not in os.environ:
        raise ConfigError(f"the environment variable {key} is not set; it holds the token for {url}")
    headers = {"Authorization": f"Bearer {os.environ[key]}"} if key else None
    async with create_mcp_http_client(headers) as client, streamable_http_client(url, http_client=client) as streams:
        yield streams


async def _prove(server: McpServerConfig, shared_session: SharedResource[_McpSession], config: MCPConfig) -> None:
    """Raises ConfigError for a server that does not start, or has no tools."""
    if server.command and shutil.which(server.command) is None:
        raise ConfigError(f"there is no program {server.command!r} on PATH to start an MCP server with; install it")
    try:
        session = await shared_session.get()
        listed = await session.tools(config.only)
    except (InfraError, ToolError) as exc:
        raise ConfigError(str(exc)) from exc
    if not listed:
        raise ConfigError(f"the MCP server {server.name} offers no tools{session.last_words()}")


def _servers(config: MCPConfig) -> dict[str, McpServerConfig]:
    unnamed = {"": config} if config.command or config.url else {}
    return {**unnamed, **config.servers}


def _spec(tool: Any) -> ToolSpec:
    """The tool in the form that chat templates take. The schema is always an object's, even if the server left parts
    out."""
    parameters = {key: value for key, value in (tool.input_schema or {}).items() if key != "$schema"}
    properties = parameters.get("properties")
    schema = {**parameters, "type": "object", "properties": properties if isinstance(properties, Mapping) else {}}
    function = {"name": tool.name, "description": tool.description or tool.title or "", "parameters": schema}
    return {"type": "function", "function": function}


def _text(result: Any) -> str:
    """The text of a result for the model. Raises ToolError if the tool reports a failure, or returns only media."""
    texts, hidden = list[str](), list[str]()
    for block in result.content:
        text = _block(block)
        (hidden.append(f"[{block.type}: left out, the model reads text]") if text is None else texts.append(text))
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    if hidden and not texts:
        kinds = ", ".join(sorted({block.type for block in result.content}))
        raise ToolError(f"the tool answered with {kinds}, which you cannot read; ask for text")
    text = "\n".join([*texts, *hidden])
    if result.is_error:
        raise ToolError(text or "the tool failed and gives no reason")
    return text


def _block(block: Any) -> str | None:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource_link":
        return f"[resource {block.uri}: {block.name}]"
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    return None


def _written(root: str, files: Mapping[str, str]) -> Path:
    folder = Path(root).resolve()
    for name, text in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or path == folder:
            raise ConfigError(f"metadata.files: {name!r} leaves the episode's folder; give a path inside it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _last_words(errors: IO[str], rubbish: Sequence[str]) -> str:
    """The end of a server's stderr, and the first line on stdout that is not a message of the protocol, in a single
    line."""
    errors.seek(0)
    stderr = " ".join(errors.read().split())
    wrote = f"; it wrote to stdout something that is not JSON-RPC: {rubbish[0]!r:.80}" if rubbish else ""
    return wrote + (f"; it said: {stderr[-_SAID:]}" if stderr else "")
