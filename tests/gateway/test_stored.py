"""Requests of OpenAI's Responses API that name what the session holds, from the real client."""

from __future__ import annotations

import openai
import pytest

from agentrl.testing import call
from tests.gateway.acting import TOOL, act

FUNCTION = {"type": "function", **TOOL["function"]}
FIELDS = {"model": "any", "instructions": "You find things.", "tools": [FUNCTION]}


def output(response):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "It is Rome."}
        for item in response.output
        if item.type == "function_call"
    ]


async def whole(actor):
    """The same conversation, sent whole each time."""
    actor.script += [call("find", what="city"), "Rome.", "Yes."]
    line = [{"role": "user", "content": "Which city?"}]
    for more in (output, lambda response: [{"role": "user", "content": "Sure?"}], None):
        response = await actor.client.responses.create(**FIELDS, input=line)
        line += [item.model_dump(exclude_none=True) for item in response.output]
        line += more(response) if more else []
    return response.output_text


async def by_previous_response(actor):
    actor.script += [call("find", what="city"), "Rome.", "Yes."]
    first = await actor.client.responses.create(**FIELDS, input="Which city?")
    second = await actor.client.responses.create(**FIELDS, input=output(first), previous_response_id=first.id)
    assert second.previous_response_id == first.id
    return (await actor.client.responses.create(**FIELDS, input="Sure?", previous_response_id=second.id)).output_text


async def by_streamed_responses(actor):
    actor.script += [call("find", what="city"), "Rome.", "Yes."]
    last, text = None, ""
    for more in (lambda _: "Which city?", output, lambda _: "Sure?"):
        named = {"previous_response_id": last.id} if last else {}
        async for event in await actor.client.responses.create(**FIELDS, **named, input=more(last), stream=True):
            if event.type == "response.completed":
                last, text = event.response, event.response.output_text
    return text


async def by_conversation(actor):
    actor.script += [call("find", what="city"), "Rome.", "Yes."]
    name = (await actor.client.conversations.create()).id
    first = await actor.client.responses.create(**FIELDS, input="Which city?", conversation=name)
    await actor.client.responses.create(**FIELDS, input=output(first), conversation={"id": name})
    return (await actor.client.responses.create(**FIELDS, input="Sure?", conversation=name)).output_text


async def by_item_references(actor):
    actor.script += [call("find", what="city"), "Rome.", "Yes."]
    line = [{"role": "user", "content": "Which city?"}]
    for more in (output, lambda response: [{"role": "user", "content": "Sure?"}], None):
        response = await actor.client.responses.create(**FIELDS, input=line)
        line += [{"type": "item_reference", "id": item.id} for item in response.output]
        line += more(response) if more else []
    return response.output_text


@pytest.mark.parametrize(
    "agent",
    [by_previous_response, by_streamed_responses, by_conversation, by_item_references],
    ids=lambda f: f.__name__,
)
async def test_a_name_continues_as_the_whole_conversation_does(agent):
    expected, played = await act(whole), await act(agent)
    assert played.info["agent"]["refused"] == 0
    assert (played.answer, len(played.segments)) == ("Yes.", 1)
    assert (played.tokens, played.loss_mask) == (expected.tokens, expected.loss_mask)


async def test_instructions_hold_for_their_own_request_only():
    """As OpenAI documents it: a request that names another one does not inherit its instructions."""

    async def agent(actor):
        actor.script += ["One.", "Two."]
        first = await actor.client.responses.create(model="any", instructions="Be brief.", input="First.")
        return (
            await actor.client.responses.create(model="any", input="Second.", previous_response_id=first.id)
        ).output_text

    played = await act(agent)
    assert (played.answer, len(played.segments)) == ("Two.", 2)
    texts = [(m["role"], m["content"]) for m in played.messages[-4:]]
    assert texts == [("user", "First."), ("assistant", "One."), ("user", "Second."), ("assistant", "Two.")]
    assert played.messages[0] == {"role": "system", "content": "Be brief."}


async def test_a_branch_of_an_earlier_response():
    async def agent(actor):
        actor.script += ["One.", "Left.", "Right."]
        first = await actor.client.responses.create(model="any", input="First.")
        for side in ("Go left.", "Go right."):
            last = await actor.client.responses.create(model="any", input=side, previous_response_id=first.id)
        return last.output_text

    played = await act(agent)
    assert [[action.content for action in segment.said] for segment in played.segments] == [
        ["Left."],
        ["One.", "Right."],
    ]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (
            {"previous_response_id": "resp_1"},
            "previous_response_id: this session has no response 'resp_1'; send the whole",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference: this session has no item 'msg_1'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\]: no item of this session is named 'x'"),
        ({"previous_response_id": "r", "conversation": "c"}, "name two histories; send one of them"),
    ],
)
async def test_an_unknown_name_is_refused(fields, match):
    async def agent(actor):
        actor.script += ["One."]
        with pytest.raises(openai.BadRequestError, match=match):
            await actor.client.responses.create(**{"model": "any", "input": "Hello.", **fields})
        with pytest.raises(openai.BadRequestError, match="a conversation begins empty"):
            await actor.client.conversations.create(items=[{"role": "user", "content": "Hello."}])
        return (await actor.client.responses.create(model="any", input="Hello.", conversation="mine")).output_text

    assert (await act(agent)).answer == "One."
