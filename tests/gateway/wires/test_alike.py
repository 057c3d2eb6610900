"""What is the same on all wires: failed results, continued replies, thoughts that are turned off, and retries."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import anthropic
import openai
import pytest

from agentrl import load_renderer
from agentrl.chat.request import Entry, RefusedError
from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.gemini import Gemini
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses
from agentrl.gateway.serving.server import Gateway
from agentrl.types import Action, Generation, Limits, Raw
from tests.gateway.client import Talk, results, told
from tests.gateway.wires.fakes import TOOLS
from tests.render.markers import template_files, tokenizer_of

ASK = {"role": "user", "content": "Go."}
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}


def result(wire, text, *, failed):
    """The entry of one tool's result."""
    if wire == "messages":
        block = {"type": "tool_result", "tool_use_id": "c1", "content": text, "is_error": failed}
        body = {"messages": [{"role": "user", "content": [block]}]}
        return Messages().read(body, {}, "").request.entries[0]
    if wire == "responses":
        status = "incomplete" if failed else "completed"
        item = {"type": "function_call_output", "call_id": "c1", "output": text, "status": status}
        return Responses().read({"input": [item]}, {}, "").request.entries[0]
    answer = {"name": "look", "id": "c1", "response": {"error" if failed else "output": text}}
    contents = [{"role": "user", "parts": [{"functionResponse": answer}]}]
    return Gemini().read({"contents": contents}, {}, "").request.entries[0]


@pytest.mark.parametrize("wire", ["messages", "responses", "gemini"])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file", "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("ValueError: x", "ValueError: x"),
        ("<tool_use_error>bad input</tool_use_error>", "<tool_use_error>bad input</tool_use_error>"),
        ("Traceback (most recent call last):\n x", "Traceback (most recent call last):\n x"),
        ("Failed to open x", "Failed to open x"),
        ("fatal: not a git repository", "fatal: not a git repository"),
        ("3 errors", "Error: 3 errors"),
        ("", "Error"),
    ],
)
def test_a_failed_tool_is_read_as_failed(wire, text, shown):
    if not (wire == "gemini" and not text):  # an empty error is none
        assert result(wire, text, failed=True) == Entry("tool", shown, call_id="c1")
    assert result(wire, text, failed=False) == Entry("tool", text, call_id="c1")


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"error": "boom", "output": ""}, '{"error": "boom", "output": ""}'),
        ({"output": "", "error": "boom"}, 'Error: {"output": "", "error": "boom"}'),
        ({"error": {"code": 1}}, '{"error": {"code": 1}}'),
        ({"content": [], "isError": True}, 'Error: {"content": [], "isError": true}'),
        ({"error": None, "output": "ok"}, '{"error": null, "output": "ok"}'),
        ({"result": "error-free"}, "error-free"),
    ],
)
def test_what_counts_as_an_error_in_googles_result(response, text):
    part = {"functionResponse": {"name": "look", "response": response}}
    (entry,) = Gemini().read({"contents": [{"role": "user", "parts": [part]}]}, {}, "").request.entries
    assert entry.text == text


def test_a_failed_result_that_loads_a_tool():
    block = {"type": "tool_result", "tool_use_id": "c1", "is_error": True}
    parts = [{"type": "tool_reference", "tool_name": "Fetch"}]
    body = {"messages": [{"role": "user", "content": [{**block, "content": parts}]}]}
    (entry,) = Messages().read(body, {}, "").request.entries
    assert (entry.text, entry.loads) == ("Error", ("Fetch",))


@pytest.fixture(scope="module")
def qwen():
    (path,) = [path for path in template_files() if path.stem == "Qwen-Qwen3-0.6B"]
    return load_renderer(tokenizer_of(path))


def exactly(renderer, text):
    """A turn of just this text. A script's string would get the empty thought that the template writes."""
    (end,) = [token for token in renderer.stop_token_ids if renderer.decode([token]) == "<|im_end|>"]
    tokens = (*renderer.text(Raw(text), Action("", "", None)).tokens, end)
    return Generation(tokens, [-0.5] * len(tokens), "stop", end)


@pytest.fixture
async def play(qwen):
    """Starts a session behind a gateway; returns it with a function that posts a body to a wire."""
    async with Gateway() as gateway, aiohttp.ClientSession() as client:

        def start(script, **given):
            turns = iter([script] if callable(script) else script)
            write = script if callable(script) else lambda _: next(turns)
            talk = Talk(qwen, lambda ids: exactly(qwen, write(ids)), limits=Limits(turns=100), **given)
            gateway.add(talk.session)
            talk.url, talk.asked, ask = gateway.url, asyncio.Queue(), talk.session.ask

            def counted(request):
                exchange = ask(request)
                talk.asked.put_nowait(request)
                return exchange

            talk.session.ask = counted

            async def post(wire, body, **headers):
                url = f"{gateway.url}/s/{talk.session.key}{PATHS[wire]}"
                async with client.post(url, json=body, headers=headers) as answer:
                    return answer.status, json.loads(await answer.text())

            return talk, post

        yield start


def prompts(talk):
    return [talk.renderer.decode(ids) for ids in talk.engine.requests]


def text_of(wire, answer):
    if wire == "chat":
        return answer["choices"][0]["message"]["content"]
    if wire == "messages":
        return "".join(block["text"] for block in answer["content"])
    if wire == "gemini":
        return "".join(part.get("text", "") for part in answer["candidates"][0]["content"]["parts"])
    return "".join(part["text"] for item in answer["output"] for part in item["content"])


def body_of(wire, *texts):
    """A conversation: texts of the user and the model in turns."""
    said = [("user", "model")[at % 2] for at in range(len(texts))]
    if wire == "gemini":
        return {"contents": [{"role": role, "parts": [{"text": text}]} for role, text in zip(said, texts, strict=True)]}
    turns = [
        {"role": role.replace("model", "assistant"), "content": text} for role, text in zip(said, texts, strict=True)
    ]
    if wire == "messages":
        return {"messages": turns, "max_tokens": 99}
    return {"messages": turns} if wire == "chat" else {"input": turns}


CONTINUING = {
    "chat": lambda body: {**body, "continue_final_message": True},
    "chat with prefix": lambda body: {"messages": [*body["messages"][:-1], {**body["messages"][-1], "prefix": True}]},
    "responses": lambda body: {"input": [*body["input"][:-1], {**body["input"][-1], "status": "incomplete"}]},
    "responses with the servers' field": lambda body: {**body, "continue_final_message": True},
    "messages": lambda body: body,
    "gemini": lambda body: body,
}


@pytest.mark.parametrize("name", CONTINUING)
async def test_a_begun_message_goes_on(play, name):
    wire = name.split()[0]
    talk, post = play(["    return 1", "Yes."])
    status, answer = await post(wire, CONTINUING[name](body_of(wire, "Write f.", "def f():\n")))
    assert (status, text_of(wire, answer)) == (200, "    return 1")
    await post(wire, body_of(wire, "Write f.", "def f():\n    return 1", "Sure?"))
    first, second = prompts(talk)
    assert first.endswith("assistant\n<think>\n\n</think>\n\ndef f():\n")
    assert second.startswith(f"{first}    return 1<|im_end|>\n<|im_start|>user\nSure?")
    assert [len(segment.turns) for segment in talk.end().segments] == [2]


NO_THOUGHTS = {
    "chat": [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}],
    "responses": [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning": {"effort": "none"}}],
    "messages": [{"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": {"type": "disabled"}}],
    "gemini": [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
        {"generation_config": {"thinking_config": {"thinking_budget": 0}}},
    ],
}
OFF = "assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize(("wire", "more"), [(wire, more) for wire, each in NO_THOUGHTS.items() for more in each])
async def test_an_agent_that_turns_thoughts_off_does_not_think(play, wire, more):
    talk, post = play(["One.", "Two.", "Three."])
    await post(wire, {**body_of(wire, "Go."), **more})
    await post(wire, {**body_of(wire, "Go.", "One.", "On."), **more})
    assert [prompt.endswith(OFF) for prompt in prompts(talk)] == [True, True]
    await post(wire, body_of(wire, "Go."))
    assert not prompts(talk)[2].endswith(OFF), "another request may think"
    assert [len(segment.turns) for segment in talk.end().segments] == [2, 1]


async def test_arguments_that_the_template_does_not_read_or_refuses_change_nothing(play):
    talk, post = play(lambda ids: "One.")
    for more in (
        {},
        {"chat_template_kwargs": {"nonsense": 1, "tools": [], "messages": 2}},
        {"reasoning_effort": "high"},
    ):
        status, _ = await post("chat", body_of("chat", "Go.") | more)
        assert status == 200
    assert len(set(prompts(talk))) == 1
    assert len(talk.session.tree.prompts) == 1


async def test_a_reply_cut_at_its_limit_keeps_the_spaces_at_its_end(play):
    talk, post = play(lambda ids: "a  b  c  d  e")
    _, answer = await post("chat", body_of("chat", "Go.") | {"max_tokens": 2})
    text = text_of("chat", answer)
    assert text == talk.renderer.decode(talk.engine.answers[0][1])
    assert text.endswith(" ")


async def test_equal_requests_at_once_are_several(play):
    talk, _ = play(lambda ids: f"Reply {len(talk.engine.params)}.")
    talk.engine.gate.clear()
    async with openai.AsyncOpenAI(base_url=f"{talk.url}/v1", api_key=talk.session.key) as gpt:
        asking = [asyncio.create_task(gpt.chat.completions.create(model="m", messages=[ASK])) for _ in range(5)]
        for _ in range(5):
            await talk.asked.get()
        talk.engine.gate.set()
        replies = await asyncio.gather(*asking)
    assert len(talk.engine.answers) == len({reply.id for reply in replies}) == 5
    assert len({params["sampling_seed"] for params in talk.engine.params}) == 5, "each samples with its own seed"
    t = talk.end()
    assert (t.ledger.trained, t.info["agent"]["dropped"]) == (t.ledger.sampled, 0)


async def test_a_retry_gets_the_reply_that_it_repeats(play):
    talk, post = play(lambda ids: f"Reply {len(talk.engine.params)}.")
    talk.engine.gate.clear()
    body = body_of("chat", "Go.")
    first = asyncio.create_task(post("chat", body))
    await talk.asked.get()
    again = asyncio.create_task(post("chat", body, **{"x-stainless-retry-count": "1"}))
    await talk.asked.get()
    talk.engine.gate.set()
    assert text_of("chat", (await first)[1]) == text_of("chat", (await again)[1]) == "Reply 1."
    assert len(talk.engine.answers) == 1


async def test_an_idempotency_key_names_a_request(play):
    talk, post = play(lambda ids: f"Reply {len(talk.engine.params)}.")
    body, key = body_of("chat", "Go."), {"Idempotency-Key": "k1"}
    texts = [text_of("chat", (await post("chat", body, **key))[1]) for _ in range(3)]
    texts.append(text_of("chat", (await post("chat", body, **{"Idempotency-Key": "k2"}))[1]))
    assert texts == ["Reply 1."] * 3 + ["Reply 2."]
    status, answer = await post("chat", body_of("chat", "Else."), **key)
    assert (status, answer["error"]["message"]) == (
        400,
        "Idempotency-Key: another request had this key; send a new key with each",
    )
    assert (await post("chat", body, **{"Idempotency-Key": "k" * 300}))[0] == 400


A_CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "a"}}\n</tool_call>'
ONE_AT_A_TIME = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}


@pytest.mark.parametrize("wire", ONE_AT_A_TIME)
async def test_one_call_at_a_time_is_obeyed(play, wire):
    written = f"{A_CALL}\n{A_CALL}"
    talk, post = play([written, "Done."])
    _, answer = await post(wire, body_of(wire, "Go.") | {"tools": TOOLS[wire]} | ONE_AT_A_TIME[wire])
    text = json.dumps(answer)
    assert ("call_" in text, text.count('"look"')) == (True, 1)
    t = talk.end()
    trained = talk.renderer.decode(
        [token for token, mask in zip(t.segment.response, t.segment.loss_mask, strict=True) if mask]
    )
    assert trained == A_CALL
    assert talk.engine.params[0]["stop"] == ["</tool_call>"]


ENDS_OF_CALLS = {
    "Qwen-Qwen3-0.6B": "</tool_call><|im_end|>",
    "HuggingFaceTB-SmolLM3-3B": "</tool_call><|im_end|>",
    "ByteDance-Seed-OSS": "</seed:tool_call><seed:eos>",
    "deepseek-ai-DeepSeek-V3.1": "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    "Mistral-Small-3.2-24B-Instruct-2506": '"b"}</s>',  # has no end of a call: the client gets the first
}


@pytest.mark.parametrize("stem", ENDS_OF_CALLS)
async def test_a_turn_of_one_call_ends_as_the_template_ends_it(stem):
    (path,) = [path for path in template_files() if path.stem == stem]
    renderer = load_renderer(tokenizer_of(path))
    calls = [
        {"id": f"call0000{at}", "type": "function", "function": {"name": "find", "arguments": {"what": what}}}
        for at, what in enumerate("ab")
    ]
    talk = Talk(renderer, [{"role": "assistant", "content": "", "tool_calls": calls}, "Done."])
    reply = await talk.says(Entry("user", "Go."), parallel=False)
    assert [call.arguments for call in reply.calls] == [{"what": "a"}]
    await talk.says(Entry("user", "Go."), told(reply), *results(reply, "seen"), parallel=False)
    assert f"{ENDS_OF_CALLS[stem]}" in renderer.decode(talk.engine.requests[1])
    talk.end()


async def test_several_calls_stay_several_by_default(play):
    talk, post = play([f"{A_CALL}\n{A_CALL}"])
    _, answer = await post("chat", body_of("chat", "Go.") | {"tools": TOOLS["chat"]})
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
    assert not talk.engine.params[0].get("stop")


async def test_stops_of_the_servers_are_obeyed(play):
    talk, post = play(["ls</bash> and more", "a\nb", "plain"])
    shown = {"stop": ["</bash>"], "include_stop_str_in_output": True}
    _, answer = await post("chat", body_of("chat", "Go.") | shown)
    assert text_of("chat", answer) == "ls</bash>"
    newline = talk.renderer.encode({"role": "assistant", "content": "a\nb"})[1]
    await post("chat", body_of("chat", "On.") | {"stop_token_ids": [newline]})
    assert newline in talk.engine.params[1]["stop_token_ids"]


async def test_thoughts_that_the_client_does_not_want_are_not_sent(play):
    _, post = play(["<think>\nHm.\n</think>\n\nYes."] * 2)
    for more, there in (({}, True), ({"include_reasoning": False}, False)):
        _, answer = await post("chat", body_of("chat", "Go.") | more)
        assert ("reasoning_content" in answer["choices"][0]["message"]) is there
        assert text_of("chat", answer) == "Yes."


async def test_a_header_never_beats_the_path(play):
    _, post = play(lambda ids: "Yes.")
    headers = {"anthropic-version": "2023-06-01", "x-goog-api-client": "genai"}
    shapes = {"chat": "choices", "responses": "output", "messages": "content", "gemini": "candidates"}
    for wire, name in shapes.items():
        status, answer = await post(wire, body_of(wire, f"Go, {wire}."), **headers)
        assert (status, name in answer) == (200, True), wire
    _, refused = await post("chat", {"messages": []}, **headers)
    assert refused["error"]["type"] == "invalid_request_error", "errors, too, in OpenAI's form"


@pytest.mark.parametrize("wire", PATHS)
async def test_a_window_that_begins_with_the_models_reply_is_played(play, wire):
    talk, post = play(["Paris.", "Madrid."])
    await post(wire, body_of(wire, "Capital of France?"))
    body = body_of(wire, "", "Paris.", "And of Spain?")
    body = {name: value[1:] if name in ("messages", "input", "contents") else value for name, value in body.items()}
    status, answer = await post(wire, body)
    assert (status, text_of(wire, answer)) == (200, "Madrid.")
    talk.end()


async def test_vendors_clients_continue_and_switch_thoughts_off(play):
    talk, _ = play([" two", "Yes.", " four"])
    async with anthropic.AsyncAnthropic(base_url=talk.url, api_key=talk.session.key) as claude:
        turns = [ASK, {"role": "assistant", "content": "one"}]
        answer = await claude.messages.create(model="m", max_tokens=9, messages=turns)
        assert answer.content[0].text == " two"
        turns = [ASK, {"role": "assistant", "content": "one two"}, {"role": "user", "content": "On."}]
        await claude.messages.create(model="m", max_tokens=9, messages=turns, thinking={"type": "disabled"})
    async with openai.AsyncOpenAI(base_url=f"{talk.url}/v1", api_key=talk.session.key) as gpt:
        extra = {"continue_final_message": True, "add_generation_prompt": False}
        turns = [ASK, {"role": "assistant", "content": "three"}]
        answer = await gpt.chat.completions.create(model="m", messages=turns, extra_body=extra)
        assert answer.choices[0].message.content == " four"


def test_a_begun_message_with_calls_cannot_go_on():
    made = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [ASK, {"role": "assistant", "content": "x", "tool_calls": [made]}]
    with pytest.raises(RefusedError, match="the last message must be the assistant's, without calls"):
        Chat().read({"messages": turns, "continue_final_message": True}, {}, "")
