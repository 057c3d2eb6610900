"""examples/nemo_gym against a resource server of this file. NeMo Gym's own servers: benchmarks/adapter_suites."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from agentrl import EnvFactory, Limits, StopReason
from agentrl.testing import call, rollout
from examples.nemo_gym.env import NemoGym

QUESTION = "What is it like in Oslo?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}]


class Server:
    """Counts the calls of each session. The reward is that count, plus 0.5 for the right answer."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.verified: list[dict] = []
        self.down = ""

    async def respond(self, request):
        body, path = await request.json(), request.path
        if path == self.down:
            return web.Response(status=500, text="no disk")
        if path == "/seed_session":
            name = f"session-{len(self.sessions)}"
            self.sessions[name] = 0
            answer = web.json_response({})
            answer.set_cookie("session", name)
            return answer
        session = request.cookies["session"]
        if path == "/weather":
            self.sessions[session] += 1
            if set(body) != {"city"}:
                return web.json_response({"detail": "city is required"}, status=422)
            return web.json_response({"weather": f"cold in {body['city']}"})
        if path == "/verify":
            self.verified.append(body)
            texts = [item["content"][0]["text"] for item in body["response"]["output"] if item["type"] == "message"]
            return web.json_response({"reward": self.sessions[session] + 0.5 * (texts[-1:] == [body["expected"]])})
        return web.json_response({"detail": "Not Found"}, status=404)


@pytest.fixture
async def server():
    server = Server()
    app = web.Application()
    app.router.add_post("/{path:.*}", server.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield server
    await runner.cleanup()


@pytest.fixture
async def envs(server, tmp_path):
    rows = [
        {"responses_create_params": {"input": asked, "tools": TOOLS}, "expected": "Cold."}
        for asked in (QUESTION, [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": QUESTION}])
    ]
    file = tmp_path / "example.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    async with EnvFactory(NemoGym, {"url": server.url, "data": str(file)}) as envs:
        yield envs


def tasks(envs):
    return [*envs.cls.tasks(envs.config, "train")]


async def test_an_episode_has_its_own_session_and_the_servers_reward(server, envs):
    plays = [([call("weather", city="Oslo"), "Cold."], 1.5), (["Cold."], 0.5), ([call("weather"), "Warm."], 1.0)]
    for task in tasks(envs):
        assert task.prompt == QUESTION
        for turns, reward in plays:
            t = await rollout(envs.make(), task, turns)
            assert (t.reward, t.failure, t.turn_count) == (reward, None, len(turns))
            assert t.ledger.sampled == t.ledger.trained > 0
    assert len(server.sessions) == 6
    assert server.verified[0]["response"]["output"][1]["output"] == '{"weather": "cold in Oslo"}'
    assert [*envs.cls.tasks(envs.config, "eval")] == []


async def test_the_model_reads_refusals_and_goes_on(server, envs):
    turns = [call("weather"), call("none"), "Cold."]
    t = await rollout(envs.make(), tasks(envs)[0], turns)
    read = [message["content"] for message in t.messages if message["role"] == "tool"]
    assert ["city is required" in read[0], "Not Found" in read[1], t.reward] == [True, True, 1.5]


async def test_a_limit_ends_the_episode_with_the_rewards_so_far(server, envs):
    t = await rollout(envs.make(), tasks(envs)[0], [call("weather", city="Oslo")] * 3, limits=Limits(turns=2))
    assert (t.stop, t.failure, t.reward) == (StopReason.MAX_TURNS, None, 2.0)


@pytest.mark.parametrize("path", ["/seed_session", "/verify"])
async def test_a_broken_server_is_a_failure_of_the_environment(server, envs, path):
    server.down = path
    t = await rollout(envs.make(), tasks(envs)[0], ["Cold."])
    assert t.failure.kind == "environment"
    assert f"{path[1:]}: 500 no disk" in t.failure.error
