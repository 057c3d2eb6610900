"""What the gateway refuses: it stands in the session's log, is counted, and is named by the failure."""

from __future__ import annotations

import aiohttp
import pytest

from agentrl import SessionOptions, StopReason, Task
from agentrl.cli._session import session_tree
from agentrl.gateway.serving import server
from agentrl.testing import call, rollout
from tests.gateway.agents import ADD, RefusedByGateway, ask, doing
from tests.gateway.wires.requests import IMAGE

TASK = Task(prompt="Go.")
USER = [{"role": "user", "content": "Hello."}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


async def quietly(endpoint, messages=USER, **body):
    """Asks, as a command line does: what is refused is printed, and its exit code is looked at by nobody."""
    try:
        return await ask(endpoint, messages, **body)
    except RefusedByGateway:
        return None


async def post(endpoint, path, body, **headers):
    headers = {"Authorization": f"Bearer {endpoint.key}", **headers}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{endpoint.url}{path}", **({"data": body} if isinstance(body, bytes) else {"json": body})) as answer,
    ):
        return answer.status


REFUSED = {
    "an image": ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0]: the model reads"),
    "a forced call": ({"tool_choice": "required"}, "tool_choice: a call is demanded, and there are no tools"),
    "a format": ({"response_format": {"type": "lark"}}, "response_format: 'lark' is not served"),
    "many replies": ({"n": 99}, "n is 99"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_refusal_is_logged_counted_and_named(what):
    body, words = REFUSED[what]

    async def run(env, task, endpoint):
        await quietly(endpoint, **body)
        return "I gave up."

    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert (played.failure.kind, played.failure.boundary) == ("bug", "run"), "it is refused in every episode"
    assert words in played.failure.error
    assert "with the key" not in played.failure.error
    assert played.info["agent"]["refused"] == 1
    (line,) = [line for line in played.session["requests"] if line["event"] == "refused"]
    assert words in line["message"]
    assert words in "\n".join(map(str, session_tree(played, 200)))


async def test_a_path_that_is_not_served_and_a_body_that_is_too_long_are_named(monkeypatch):
    monkeypatch.setattr(server, "BODY_BYTES", 1000)

    async def lost(env, task, endpoint):
        assert await post(endpoint, "/chat/completions", {}) == 404

    played = await rollout(doing(lost)(), TASK, ["Hi."])
    assert "POST /chat/completions is not served here; these are: /v1/messages" in played.failure.error
    assert played.info["agent"]["refused"] == 1

    async def large(env, task, endpoint):
        assert await post(endpoint, "/v1/messages", b"x" * 2000) == 413

    played = await rollout(doing(large)(), TASK, ["Hi."])
    assert "the body has more than 1000 bytes" in played.failure.error
    assert played.info["agent"]["refused"] == 1


async def test_a_count_that_is_refused_is_logged():
    async def run(env, task, endpoint):
        body = {"model": "m", "messages": [{"role": "user", "content": [IMAGE]}]}
        assert await post(endpoint, "/v1/messages/count_tokens", body) == 400
        return (await ask(endpoint, USER))["content"]

    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert (played.stop, played.reward, played.info["agent"]["refused"]) == (StopReason.DONE, 1.0, 1)


async def test_an_agent_that_hides_a_refusal_fails_with_it():
    async def run(env, task, endpoint):
        await ask(endpoint, USER)
        await quietly(endpoint, n=99)
        raise RuntimeError("exit code 1")

    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert played.failure.error.startswith("RuntimeError: exit code 1; the gateway refused its last request: ")
    assert "n is 99" in played.failure.error


async def test_a_refusal_that_the_agent_got_over_is_not_blamed():
    async def run(env, task, endpoint):
        await quietly(endpoint, n=99)
        await ask(endpoint, USER)
        raise RuntimeError("oops")

    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert played.failure.error == "RuntimeError: oops"


async def test_an_agent_that_ended_on_a_refusal_is_scored_with_a_warning(caplog):
    async def run(env, task, endpoint):
        said = await ask(endpoint, USER)
        await quietly(endpoint, [*USER, said, {"role": "user", "content": [PICTURE]}])

    agent = type("Ender", (doing(run),), {})
    for _ in range(2):
        played = await rollout(agent(), TASK, ["Hi."])
        assert (played.failure, played.reward) == (None, 1.0)
    (warned,) = [record.message for record in caplog.records if "refused" in record.message]
    assert warned.startswith("Ender: the gateway refused 1 requests of an episode")
    assert "text only" in warned


async def test_a_bug_in_reading_a_request_is_kept(monkeypatch):
    async def run(env, task, endpoint):
        assert await post(endpoint, "/v1/chat/completions", {"messages": USER}) == 500

    def broken(*_):
        raise KeyError("oops")

    monkeypatch.setattr("agentrl.chat.wires.chat.relaxed", broken)
    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert (played.failure.kind, "KeyError: 'oops'" in played.failure.error) == ("bug", True)


async def test_an_image_can_be_left_out():
    async def run(env, task, endpoint):
        said = [{"role": "user", "content": [{"type": "text", "text": "Look."}, PICTURE]}]
        first = await ask(endpoint, said, tools=[ADD])
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": [PICTURE]}
        return (await ask(endpoint, [*said, first, result], tools=[ADD]))["content"]

    agent = doing(run)
    agent.session = SessionOptions(images="omit")
    played = await rollout(agent(), TASK, [call("add", n=1), "Seen."])
    assert (played.failure, played.info["result"], len(played.segments)) == (None, "Seen.", 1)
    asked = [line["asked"] for line in played.session["requests"] if line["event"] == "request"]
    assert asked == [{"images_omitted": 1}, {"images_omitted": 2}]
    told = [message["content"] for message in played.messages if message["role"] != "assistant"]
    assert told == [
        "Look.\n\n[image omitted: this model reads text only]",
        "[image omitted: this model reads text only]",
    ]


async def test_what_is_forced_can_be_ignored():
    async def run(env, task, endpoint):
        return (await ask(endpoint, USER, tools=[ADD], tool_choice="required"))["content"]

    agent = doing(run)
    agent.session = SessionOptions(forced="ignore")
    played = await rollout(agent(), TASK, ["No."])
    (asked,) = [line["asked"] for line in played.session["requests"] if line["event"] == "request"]
    assert (played.info["result"], asked) == ("No.", {"forced_ignored": {"tool_choice": "required"}})
