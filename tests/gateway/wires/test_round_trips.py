"""What a wire writes, its client tells back, and the wire reads: the same entry. Events fit the vendors' types."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentrl.chat.request import Call, Entry, Reply, ReplyCall, ReplyUsage
from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.text("abcXYZ019_-", min_size=1, max_size=64)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
UNREADABLE = TEXTS.map(lambda text: f"{{oops {text}")
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=3) | UNREADABLE
CALLS = st.lists(
    st.builds(ReplyCall, IDS, st.sampled_from(["look", "spawn", "patch"]), ARGUMENTS),
    max_size=3,
    unique_by=lambda call: call.id,
).map(tuple)
REPLIES = st.builds(
    Reply,
    id=IDS,
    receipt=IDS,
    content=TEXTS,
    reasoning=st.none() | TEXTS.filter(bool),
    calls=CALLS,
    stop=st.sampled_from(["end", "calls", "length"]),
    stop_sequence=st.none(),
    usage=st.builds(ReplyUsage, st.integers(100, 200), st.integers(0, 100), st.integers(0, 99)),
)
EVENTS = {"messages": TypeAdapter(RawMessageStreamEvent), "responses": TypeAdapter(ResponseStreamEvent)}
TOOLS = [
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn", "parameters": {}}]},
    {"type": "function", "name": "look", "parameters": {}},
]
quick = settings(max_examples=60, deadline=None, database=None, derandomize=True)


def events(stream):
    """The data of server-sent events; each must be one line of ASCII."""
    for block in stream.decode("ascii").split("\n\n")[:-1]:
        *names, data = block.split("\n")
        read = data.removeprefix("data: ")
        if read != "[DONE]":
            parsed = json.loads(read)
            assert all(name == f"event: {parsed['type']}" for name in names)
            if parsed.get("type") != "ping":
                yield parsed


def streamed(answer, reply):
    return list(events(answer.opening() + answer.progress() + b"".join(answer.closing([reply]))))


def told(reply, receipts):
    calls = tuple(Call(call.id, call.name, call.arguments) for call in reply.calls)
    receipts = tuple(dict.fromkeys([*receipts, *(call.id for call in reply.calls)]))
    return Entry("assistant", reply.content, reply.reasoning, calls, receipts)


def message_of(stream):
    """Put a stream of Anthropic's together as its clients do."""
    message = None
    for event in stream:
        EVENTS["messages"].validate_python(event)
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                json_text = ""
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                for kind in ("text", "thinking", "signature"):
                    if kind in delta:
                        block[kind] += delta[kind]
                json_text += delta.get("partial_json", "")
            case "content_block_stop":
                if block["type"] == "tool_use":
                    block["input"] = json.loads(json_text)
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    return message


@quick
@given(REPLIES)
def test_messages(reply):
    ask = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
    answer = Messages().read(ask, {}, "")
    whole = json.loads(json.dumps(answer.whole([reply])))
    Message.model_validate(whole)
    assert message_of(streamed(answer, reply)) == whole
    echoed = {"role": "assistant", "content": whole["content"]}
    read = Messages().read(ask | {"messages": [*ask["messages"], echoed]}, {}, "").request.entries[-1]
    assert read == told(reply, [reply.receipt] if reply.reasoning is not None else [])


@pytest.mark.thorough
@quick
@given(REPLIES)
def test_responses(reply):
    ask = {"model": "m", "input": [{"role": "user", "content": "Go."}], "tools": TOOLS}
    answer = Responses().read(ask, {}, "")
    whole = json.loads(json.dumps(answer.whole([reply])))
    Response.model_validate(whole)
    stream = streamed(answer, reply)
    for event in stream:
        EVENTS["responses"].validate_python(event)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert stream[-1]["response"] == whole
    assert [event["item"] for event in stream if event["type"] == "response.output_item.done"] == whole["output"]
    spawned = [item.get("namespace") for item in whole["output"] if item.get("name") == "spawn"]
    assert set(spawned) <= {"agents"}
    read = Responses().read(ask | {"input": [*ask["input"], *whole["output"]]}, {}, "").request.entries[-1]
    receipts = [*([reply.id, reply.receipt] if reply.reasoning is not None else [])]
    receipts += [reply.id] if reply.content or not reply.calls else []
    assert read == told(reply, receipts)


@quick
@given(REPLIES)
def test_chat(reply):
    ask = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream_options": {"include_usage": True}}
    answer = Chat().read(ask, {}, "")
    whole = json.loads(json.dumps(answer.whole([reply])))
    ChatCompletion.model_validate(whole)
    state = ChatCompletionStreamState()
    for event in streamed(answer, reply):
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    kept = state.current_completion_snapshot.to_dict()
    message = kept["choices"][0]["message"]
    for call in message.get("tool_calls") or ():
        del call["index"]
        call["function"].pop("parsed_arguments", None)
    assert kept["usage"] == whole["usage"]
    assert message["content"] == (whole["choices"][0]["message"]["content"] or "")
    assert message.get("tool_calls") == whole["choices"][0]["message"].get("tool_calls")
    assert message.get("reasoning_content") == whole["choices"][0]["message"].get("reasoning_content")
    sent = [*ask["messages"], whole["choices"][0]["message"]]
    assert Chat().read(ask | {"messages": sent}, {}, "").request.entries[-1] == told(reply, [])


def test_a_custom_tools_call_comes_back_as_its_text():
    tool = {"type": "custom", "name": "patch"}
    reply = Reply(
        "r", "p", "", None, (ReplyCall("c", "patch", {"input": "*** x"}),), "calls", None, ReplyUsage(1, 0, 1)
    )
    answer = Responses().read({"model": "m", "input": "Go.", "tools": [tool]}, {}, "")
    (item,) = answer.whole([reply])["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** x")
    for event in streamed(answer, reply):
        EVENTS["responses"].validate_python(event)
    read = Responses().read({"input": [item], "tools": [tool]}, {}, "").request.entries
    assert read == (told(reply, ["c"]),)


def test_the_rest_of_an_answer_whose_thoughts_are_known():
    reply = Reply("r", "p", "Rest.", "Known.", (), "end", None, ReplyUsage(1, 0, 1), without_reasoning=True)
    (item,) = Responses().read({"input": "Go."}, {}, "").whole([reply])["output"]
    assert item["type"] == "message"
    (block,) = Messages().read({"messages": [{"role": "user", "content": "Go."}]}, {}, "").whole([reply])["content"]
    assert block["type"] == "text"
    chat = Chat().read({"messages": [{"role": "user", "content": "Go."}]}, {}, "").whole([reply])
    assert "reasoning_content" not in chat["choices"][0]["message"]
