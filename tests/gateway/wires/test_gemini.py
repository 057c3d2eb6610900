"""Google's wire: what is read, what is written, and its errors."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

import aiohttp
import pytest

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, Entry, Forced, RefusedError
from agentrl.chat.wires.gemini import Gemini
from agentrl.gateway.serving import answering
from tests.gateway.wires.fakes import FULL, PLAIN

GO = {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]}
LOOK = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "OBJECT", "properties": {"q": {"type": "STRING"}}},
}
TOOLS = [{"functionDeclarations": [LOOK, {**LOOK, "name": "find"}]}]
PLAIN_LOOK = {"type": "object", "properties": {"q": {"type": "string"}}}
URL = "/v1beta/models/m:"


def read(options=None, **body):
    return Gemini().read({**GO, "model": "m", **body}, {}, "", options or SessionOptions()).request


async def post(gateway, method, body=GO, key="key-1", where="header", **query):
    headers = {"x-goog-api-key": key} if where == "header" else {}
    query |= {"key": key} if where == "query" else {}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}{URL}{method}", params=query, json=body) as answer,
    ):
        return answer.status, await answer.text()


def events(text):
    return [json.loads(one.removeprefix("data: ")) for one in text.split("\r\n\r\n") if one]


def test_a_conversation_is_read():
    request = read(
        systemInstruction={"parts": [{"text": "Be brief."}]},
        tools=TOOLS,
        contents=[
            {"role": "user", "parts": [{"text": "Go."}, {"text": "On."}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    {"text": "I look."},
                    {"functionCall": {"id": "c1", "name": "look", "args": {"q": "x"}}},
                    {"functionCall": {"name": "find", "args": {"INVALID_JSON": "{oops"}}},
                    {"functionCall": {"name": "find"}, "thoughtSignature": base64.b64encode(b"r_1").decode()},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "look", "response": {"output": "It is.\n"}}},
                    {"function_response": {"name": "find", "response": {"hits": [1], "more": False}}},
                ],
            },
        ],
        generationConfig={"maxOutputTokens": 9, "stopSequences": ["END"], "candidateCount": 2, "topP": 0.5},
    )
    calls = (Call("c1", "look", {"q": "x"}), Call("", "find", "{oops"), Call("", "find", {}))
    assert request.entries == (
        Entry("system", "Be brief."),
        Entry("user", "Go."),
        Entry("user", "On.", joined=True),
        Entry("assistant", "I look.", "Hm.", calls, ("c1", "r_1")),
        Entry("tool", "It is.\n", call_id="c1"),
        Entry("tool", '{"hits": [1], "more": false}', joined=True),
    )
    assert [tool["function"]["parameters"] for tool in request.tools] == [PLAIN_LOOK] * 2
    assert (request.max_tokens, request.stop, request.n, request.recorded) == (9, ("END",), 2, {"top_p": 0.5})


def test_results_without_ids_answer_the_calls_of_their_name_in_order():
    calls = [{"functionCall": {"id": f"c{i}", "name": name}} for i, name in enumerate(["look", "find", "look"])]
    answers = [{"functionResponse": {"name": name, "response": {"result": name}}} for name in ("look", "look", "find")]
    request = read(
        contents=[*GO["contents"], {"role": "model", "parts": calls}, {"role": "function", "parts": answers}]
    )
    assert [entry.call_id for entry in request.entries if entry.role == "tool"] == ["c0", "c2", "c1"]


@pytest.mark.parametrize(
    ("body", "forced"),
    [
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, Forced(("look", "find"))),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["find"]}}},
            Forced(("find",)),
        ),
        ({"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}}, None),
        (
            {"generationConfig": {"responseMimeType": "application/json", "responseSchema": LOOK["parameters"]}},
            Forced(("look", "find"), PLAIN_LOOK),
        ),
        (
            {
                "generationConfig": {"responseMimeType": "application/json"},
                "toolConfig": {"functionCallingConfig": {"mode": "NONE"}},
            },
            Forced((), {"type": "object"}),
        ),
    ],
)
def test_what_is_demanded(body, forced):
    assert read(tools=TOOLS, **body).forced == forced
    assert read(SessionOptions(forced="ignore"), tools=TOOLS, **body).forced is None


IMAGE = {"inlineData": {"mimeType": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"contents": []}, "contents: at least one content"),
        ({"contents": [{"role": "tool", "parts": []}]}, r"contents\[0\].role must be user or model"),
        ({"contents": [{"parts": [IMAGE]}]}, r"contents\[0\].parts\[0\]: the model reads text only"),
        ({"contents": [{"parts": [{"executableCode": {}}]}]}, "executableCode is not served"),
        ({"cachedContent": "cachedContents/x"}, "cachedContent: nothing is stored here"),
        ({"generationConfig": {"responseLogprobs": True}}, "responseLogprobs: the tokens, log-probs and states stay"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "writes text only"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "'text/x.enum' is not served"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens must be a positive"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "tool_choice: 'some' is not served"),
        ({"tools": [{"functionDeclarations": [{}]}]}, r"functionDeclarations\[0\].name is missing"),
    ],
)
def test_what_is_not_served_is_refused_by_name(body, words):
    with pytest.raises(RefusedError, match=words):
        read(**body)


def test_images_and_hosted_tools_are_left_out_with_a_note():
    request = read(SessionOptions(images="omit"), contents=[{"parts": [IMAGE]}], tools=[{"googleSearch": {}}])
    assert request.entries[0].text == "[image omitted: this model reads text only]"
    assert request.recorded == {"tools_left_out": ["googleSearch"], "images_omitted": 1}


@pytest.mark.parametrize("where", ["header", "query"])
async def test_an_answer(gateway, session, where):
    status, text = await post(gateway, "generateContent", where=where)
    told = json.loads(text)
    assert (status, session.request.wire, session.request.model) == (200, "gemini", "m")
    (candidate,) = told["candidates"]
    thought, content, first, second = candidate["content"]["parts"]
    assert thought == {"text": "Let me see.", "thought": True}
    assert content == {"text": "Hello."}
    assert first["functionCall"] == {
        "id": "call_1",
        "name": "look",
        "args": {"where": "über ☃", "deep": {"b": [1, None]}},
    }
    assert base64.b64decode(second["thoughtSignature"]) == b"receipt-1"
    assert candidate["finishReason"] == "STOP"
    assert told["usageMetadata"]["totalTokenCount"] == 107
    echoed = read(contents=[*GO["contents"], candidate["content"], *GO["contents"]]).entries[1]
    assert (echoed.text, echoed.reasoning, echoed.receipts) == (
        "Hello.",
        "Let me see.",
        ("call_1", "receipt-1", "call_2"),
    )


async def test_a_cut_answer_and_a_call_that_cannot_be_read(gateway, session):
    session.answer = lambda _: [replace(PLAIN, stop="length")]
    assert json.loads((await post(gateway, "generateContent"))[1])["candidates"][0]["finishReason"] == "MAX_TOKENS"
    broken = replace(FULL.calls[0], arguments="{oops")
    session.answer = lambda _: [replace(FULL, calls=(broken,))]
    part = json.loads((await post(gateway, "generateContent"))[1])["candidates"][0]["content"]["parts"][-1]
    assert part["functionCall"]["args"] == {"INVALID_JSON": "{oops"}


async def test_a_stream_shows_life_and_ends_with_the_answer(gateway, session, monkeypatch):
    monkeypatch.setattr(answering, "PROGRESS_S", 0.01)
    session.hold = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, session.hold.set)
    status, text = await post(gateway, "streamGenerateContent", alt="sse")
    *signs, last = events(text)
    assert status == 200
    assert len(signs) > 2
    assert all("candidates" not in sign for sign in signs)
    assert last["candidates"][0]["content"]["parts"][1]["text"] == "Hello."
    assert session.exchanges[0].told == ["delivered"]


async def test_a_stream_without_events_is_a_list(gateway, session):
    (whole,) = json.loads((await post(gateway, "streamGenerateContent"))[1])
    assert whole["candidates"][0]["finishReason"] == "STOP"


async def test_errors_in_googles_words(gateway, session):
    full = RefusedError("context_full", "prompt is too long: 9 tokens > 8 maximum")
    session.accept = session.answer = lambda _: full
    for alt in ({}, {"alt": "sse"}):
        status, text = await post(gateway, "streamGenerateContent" if alt else "generateContent", **alt)
        assert status == 400
        error = json.loads(text)["error"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
        assert error["message"].startswith("The input token count exceeds the maximum number of tokens allowed: ")
    status, text = await post(gateway, "generateContent", key="wrong")
    assert (status, json.loads(text)["error"]["status"]) == (400, "INVALID_ARGUMENT")
    status, text = await post(gateway, "embedContent")
    assert (status, json.loads(text)["error"]["status"]) == (404, "NOT_FOUND")
    session.answer = lambda _: RefusedError("unavailable", "the engine is away")
    status, text = await post(gateway, "generateContent")
    assert (status, json.loads(text)["error"]["status"]) == (503, "UNAVAILABLE")


async def test_a_stream_that_fails_after_it_began(gateway, session, monkeypatch):
    session.answer = lambda _: RefusedError("unavailable", "the engine broke")
    _, text = await post(gateway, "streamGenerateContent", alt="sse")
    assert events(text)[-1]["error"] == {"code": 503, "message": "the engine broke", "status": "UNAVAILABLE"}


async def test_tokens_are_counted_and_models_listed(gateway, session):
    assert json.loads((await post(gateway, "countTokens"))[1]) == {"totalTokens": 3}
    inner = {"generateContentRequest": {**GO, "systemInstruction": {"parts": [{"text": "Four"}]}}}
    assert json.loads((await post(gateway, "countTokens", inner))[1]) == {"totalTokens": 7}
    async with aiohttp.ClientSession(headers={"x-goog-api-key": "key-1"}) as http:
        for path, name in (("models", "models/agentrl"), ("models/any", "models/any")):
            async with http.get(f"{gateway.url}/v1beta/{path}") as answer:
                told = await answer.json()
                assert (told["models"][0] if path == "models" else told)["name"] == name
