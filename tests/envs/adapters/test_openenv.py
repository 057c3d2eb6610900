"""The OpenEnv adapter against a server that speaks the wire as openenv 0.10 does: its frames and error codes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from agentrl import ConfigError, EnvFactory, Limits, StopReason, Task
from agentrl.testing import call, rollout

ENV = "agentrl_envs.adapters.openenv:OpenEnv"
META = {"metadata": {"type": "object"}}
TEXT = {"properties": {"guess": {"type": "string"}, "note": {"type": "string"}, **META}, "required": ["guess"]}
MOVE = {"properties": {"way": {"enum": ["up", "down"], "type": "string"}, "far": {"type": "integer"}, **META}}
TOOLS = [{"name": "price", "description": "A price.", "inputSchema": {"type": "object", "properties": {}}}]


class Server:
    """Guess the seed's last digit, in `sessions` sessions at a time."""

    def __init__(self, action, tools=(), sessions=9):
        self.action, self.tools, self.free, self.most = action, tools, sessions, 0
        self.sessions, self.heard = sessions, []

    def step(self, data):
        if "type" in data:
            if data["arguments"].get("item") == "air":
                return {"tool_name": "price", "error": {"error_type": "execution_error", "message": "free"}}, 0.5, False
            return {"tool_name": "price", "result": {"content": [{"type": "text", "text": "7"}]}}, 0.25, True
        if "way" in data:
            return {"at": data["far"], "name": None}, float(data["far"] == 2), data["far"] == 2
        right = data["guess"] == str(self.seed % 10)
        return {"text": "Right" if right else "Wrong"}, float(right), right

    async def answer(self, kind, data):
        if kind == "state":
            return {"type": "state", "data": {}}
        if kind == "mcp":
            found = (
                {"result": {"tools": self.tools}} if self.tools else {"result": None, "error": {"message": "no MCP"}}
            )
            return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, **found}}
        if kind == "reset":
            self.seed = data["seed"]
            said, reward, done = {"text": "Guess."}, None, False
        elif data.get("guess") == "wrong form":
            wrong = {"message": "Invalid message", "errors": [{"loc": ["guess"], "msg": "is no digit"}]}
            return {"type": "error", "data": {"code": "VALIDATION_ERROR", **wrong}}
        elif data.get("guess") == "break":
            return {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "disk full"}}
        else:
            said, reward, done = self.step(data)
        return {"type": "observation", "data": {"observation": said, "reward": reward, "done": done}}

    async def socket(self, request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if not self.free:
            await socket.send_json({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}})
            return socket
        self.free -= 1
        self.most = max(self.most, self.sessions - self.free)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT or (said := message.json())["type"] == "close":
                    break
                self.heard.append(said)
                if said.get("data", {}).get("guess") == "go away":
                    break
                await socket.send_json(await self.answer(said["type"], said.get("data", {})))
        finally:
            self.free += 1
        return socket

    async def schema(self, request):
        return web.json_response({"action": self.action, "observation": {}, "state": {}})


@asynccontextmanager
async def served(server, **config):
    app = web.Application()
    app.add_routes([web.get("/ws", server.socket), web.get("/schema", server.schema)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    try:
        async with EnvFactory(ENV, {"url": url, **config}) as envs:
            yield envs
    finally:
        await runner.cleanup()


async def played(server, said, renderer, limits=None, **config):
    async with served(server, **config) as envs:
        return await rollout(envs.make(), Task(seed=17), said, renderer=renderer, limits=limits)


async def test_a_turn_is_the_only_text_that_an_action_needs(renderer):
    server = Server(TEXT)
    t = await played(server, ["3", "wrong form", "7"], renderer, prompt="A digit.")
    assert [m["content"] for m in t.messages if m["role"] == "user"] == [
        "A digit.\n\nGuess.",
        "Wrong",
        "Error: the action is refused: Invalid message (guess: is no digit)",
        "Right",
    ]
    assert (t.reward, t.stop) == (1.0, StopReason.DONE)
    assert server.heard[2] == {"type": "reset", "data": {"seed": 17}}
    assert server.heard[3] == {"type": "step", "data": {"guess": "3"}}


async def test_an_action_of_fields_is_one_tool(renderer):
    t = await played(Server(MOVE), [call("act", way="up", far=1), call("act", way="up", far=2)], renderer)
    assert [m["content"] for m in t.messages if m["role"] == "tool"] == ['{"at": 1}', '{"at": 2}']
    assert (t.reward, t.stop) == (1.0, StopReason.DONE)


async def test_mcp_tools_are_the_models(renderer):
    turns = [call("lend"), call("price", item="air"), call("price", item="tea")]
    t = await played(Server(MOVE, TOOLS), turns, renderer)
    assert [m["content"] for m in t.messages if m["role"] == "tool"] == [
        "Error: there is no tool 'lend'; the tools are: price",
        "Error: free",
        "7",
    ]
    assert (t.reward, t.stop) == (0.75, StopReason.DONE), "an error's reward counts, too"


async def test_more_episodes_than_sessions_wait(renderer):
    server = Server(TEXT, sessions=2)
    async with served(server) as envs:
        plays = [
            rollout(envs.make(), Task(seed=7), ["7"], renderer=renderer, limits=Limits(reset_s=20)) for _ in range(5)
        ]
        got = await asyncio.gather(*plays)
    assert [t.reward for t in got] == [1.0] * 5
    assert (server.most, server.free) == (2, 2)


@pytest.mark.parametrize(
    ("said", "error"), [("break", "EXECUTION_ERROR: disk full"), ("go away", "does not answer step")]
)
async def test_a_server_that_breaks_is_the_worlds_failure(said, error, renderer):
    t = await played(Server(TEXT), [said], renderer)
    assert t.failure.kind == "environment"
    assert error in t.failure.error


async def test_no_session_in_time_is_the_worlds_failure(renderer):
    t = await played(Server(TEXT, sessions=0), ["7"], renderer, wait_s=0.1)
    assert "has had no session left for 0.1 s: full; raise its max_concurrent_envs" in t.failure.error


async def test_what_cannot_work_is_told_before_the_first_episode():
    with pytest.raises(ConfigError, match=r"no OpenEnv server answers at http://127.0.0.1:9/schema"):
        async with EnvFactory(ENV, {"url": "http://127.0.0.1:9"}):
            pass
    with pytest.raises(ConfigError, match="an action has no field 'answer'; it has: guess, note, metadata"):
        async with served(Server(TEXT), field="answer"):
            pass
