"""How requests are read: what means the same reads the same, and what is not served is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, Entry, RefusedError
from agentrl.chat.wires.reading import read_body
from tests.gateway.wires.requests import IMAGE, WIRES

ASK = [{"role": "user", "content": "Go."}]
LEAST = {"messages": {"messages": ASK}, "responses": {"input": "Go."}, "chat": {"messages": ASK}}


def read(wire, headers=None, **body):
    return WIRES[wire].read(LEAST[wire] | body, headers or {}, "digest").request


def messages(*sent, **body):
    return read("messages", messages=list(sent), **body).entries


def text(value, **more):
    return {"type": "text", "text": value, **more}


MARK = {"cache_control": {"type": "ephemeral"}}


def test_a_list_and_a_string_and_the_marks_of_caches_are_one():
    marked = messages({"role": "user", "content": [text("Go.", **MARK)]}, system=[text("Be kind.", **MARK)])
    assert marked == messages({"role": "user", "content": "Go."}, system="Be kind.")
    assert marked == (Entry("system", "Be kind."), Entry("user", "Go."))
    listed = read("chat", messages=[{"role": "user", "content": [text("Go.")]}])
    assert listed.entries == read("chat").entries
    assert read("responses", input=[{"role": "user", "content": [{"type": "input_text", "text": "Go."}]}]).entries == (
        Entry("user", "Go."),
    )


def test_the_blocks_of_a_message_are_entries_of_their_own():
    sent = {"role": "user", "content": [text("One."), text("Two.")]}
    both = (Entry("user", "One."), Entry("user", "Two.", joined=True))
    assert messages(sent) == both == read("chat", messages=[sent]).entries
    assert messages({"role": "user", "content": []}) == (Entry("user"),)


def test_the_billing_text_of_claude_code_is_not_for_the_model():
    billing = text("x-anthropic-billing-header: cc_version=2.1.330.94c; cc_is_subagent=true;")
    request = read("messages", system=[billing, text("You are an agent."), text("Rules.", **MARK)])
    assert request.entries[:2] == (Entry("system", "You are an agent."), Entry("system", "Rules.", joined=True))
    assert request.branch == "sub-agent"


def test_an_assistant_message_is_one_entry_with_its_receipts():
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "receipt"},
        {"type": "redacted_thinking", "data": "sealed"},
        text("I look."),
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}},
    ]
    (entry,) = messages({"role": "assistant", "content": content})
    call = Call("call_1", "look", {"at": 1})
    assert entry == Entry("assistant", "I look.", "Hm.", (call,), ("receipt", "sealed", "call_1"))


def test_a_result_is_text_and_may_load_tools():
    result = {"type": "tool_result", "tool_use_id": "call_1", "is_error": False}
    loaded = {"type": "tool_reference", "tool_name": "Fetch"}
    first, second, third = messages(
        {"role": "user", "content": [result | {"content": [text("a"), loaded, text("b")]}, result, text("Note.")]}
    )
    assert first == Entry("tool", "a\nb", call_id="call_1", loads=("Fetch",))
    assert second == Entry("tool", "", call_id="call_1", joined=True)
    assert third == Entry("user", "Note.", joined=True)


def test_deferred_tools_wait_and_hosted_ones_are_left_out():
    tools = [
        {"name": "look", "input_schema": {"type": "object"}, **MARK},
        {"name": "Fetch", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    request = read("messages", tools=tools)
    assert request.tools == ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)
    assert list(request.deferred) == ["Fetch"]
    assert request.recorded == {"tools_left_out": ["web_search_20250305"]}


def item(kind, **more):
    return {"type": kind, **more}


def said(value, **more):
    return item("message", role="assistant", content=[{"type": "output_text", "text": value}], **more)


def thought(value, **more):
    return item("reasoning", summary=[{"type": "summary_text", "text": value}], **more)


def called(call_id, **more):
    return item("function_call", call_id=call_id, name="look", arguments='{"at": 1}', **more)


def test_the_items_of_one_reply_are_one_entry():
    sent = [
        item("message", role="developer", content=[{"type": "input_text", "text": "Rules."}]),
        thought("Hm.", id="rs_r1", encrypted_content="receipt"),
        said("I look.", id="msg_r1"),
        called("call_1", id="fc_call_1"),
        called("call_2"),
        item("function_call_output", call_id="call_2", output=[{"type": "input_text", "text": "seen"}]),
        said("Done."),
        said("Really."),
        thought("Again."),
    ]
    request = read("responses", input=sent, instructions="Be kind.")
    calls = (Call("call_1", "look", {"at": 1}), Call("call_2", "look", {"at": 1}))
    assert request.entries == (
        Entry("system", "Be kind."),
        Entry("developer", "Rules."),
        Entry("assistant", "I look.", "Hm.", calls, ("r1", "receipt", "call_1", "call_2")),
        Entry("tool", "seen", call_id="call_2"),
        Entry("assistant", "Done."),
        Entry("assistant", "Really."),
        Entry("assistant", "", "Again."),
    )


def test_thoughts_told_as_a_message_of_their_own_belong_to_the_reply():
    """As pydantic-ai tells them."""
    sent = [said("<think>\nHm.\n</think>"), said("I look."), called("c1"), said("<think>\nOh.\n</think>"), said("Yes.")]
    call = Call("c1", "look", {"at": 1})
    assert read("responses", input=sent).entries == (
        Entry("assistant", "I look.", "Hm.", (call,), ("c1",)),
        Entry("assistant", "Yes.", "Oh."),
    )


def function(name):
    return {"type": "function", "name": name, "parameters": {"type": "object"}}


def test_tools_of_a_namespace_have_their_own_names_unless_two_have_the_same():
    tools = [
        function("look"),
        {"type": "namespace", "name": "agents", "description": "", "tools": [function("spawn"), function("look")]},
        {"type": "web_search"},
    ]
    request = read("responses", tools=tools, input=[called("c1", namespace="agents"), called("c2")])
    assert [tool["function"]["name"] for tool in request.tools] == ["look", "spawn", "agents__look"]
    assert [call.name for call in request.entries[0].calls] == ["agents__look", "look"]
    assert request.recorded == {"tools_left_out": ["web_search"]}


def test_a_custom_tool_takes_one_text_and_its_grammar_is_told():
    tool = {"type": "custom", "name": "patch", "description": "Patches.", "format": {"definition": "start: /x/"}}
    sent = [
        item("custom_tool_call", call_id="c1", name="patch", input="x"),
        item("custom_tool_call_output", call_id="c1", output="ok"),
    ]
    request = read("responses", tools=[tool], input=sent)
    spec = request.tools[0]["function"]
    assert (spec["parameters"]["required"], "start: /x/" in spec["description"]) == (["input"], True)
    assert request.entries == (
        Entry("assistant", calls=(Call("c1", "patch", {"input": "x"}),), receipts=("c1",)),
        Entry("tool", "ok", call_id="c1"),
    )


@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [
        ('{"b": 1, "a": "\\u00fc"}', {"a": "ü", "b": 1}),
        ("", {}),
        ('{"a": oops', '{"a": oops'),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_arguments_are_an_object_or_as_they_came(arguments, read_as):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    (entry,) = read("chat", messages=[{"role": "assistant", "content": None, "tool_calls": [call]}]).entries
    assert entry == Entry("assistant", calls=(Call("c1", "look", read_as),), receipts=("c1",))


def test_a_chat_may_tell_its_reasoning_under_two_names():
    for name in ("reasoning_content", "reasoning"):
        (entry,) = read("chat", messages=[{"role": "assistant", "content": "Hi.", name: "Hm."}]).entries
        assert entry == Entry("assistant", "Hi.", "Hm.")


@pytest.mark.parametrize(
    ("wire", "headers", "branch"),
    [
        ("responses", {"thread-id": "t1"}, ""),
        ("responses", {"thread-id": "t2", "x-codex-parent-thread-id": "t1"}, "t2"),
        ("responses", {"x-openai-subagent": "review"}, "review"),
        ("messages", {"x-claude-code-agent-id": "a1"}, "a1"),
        *((wire, {"x-session-id": "s2", "x-parent-session-id": "s1"}, "s2") for wire in WIRES),
        *((wire, {"x-session-id": "s1"}, "") for wire in WIRES),
    ],
)
def test_headers_name_branches(wire, headers, branch):
    assert read(wire, headers).branch == branch


def test_no_tools_are_shown_where_none_may_be_called():
    tool = {"type": "function", "function": {"name": "look"}}
    assert read("chat", tools=[tool], tool_choice="none").tools == ()
    assert read("chat", tools=[tool], tool_choice="auto").tools
    assert read("messages", tools=[{"name": "look", "input_schema": {}}], tool_choice={"type": "none"}).tools == ()


@pytest.mark.parametrize(
    ("wire", "body", "words"),
    [
        ("messages", {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]: .*text only"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text only"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "text only"),
        ("messages", {"tool_choice": {"type": "any"}}, "tool_choice: a call is demanded, and there are no tools"),
        (
            "responses",
            {"tool_choice": {"type": "function", "name": "look"}},
            "tool_choice: no tool has the name 'look'",
        ),
        ("chat", {"tool_choice": {"type": "web_search"}}, "tool_choice: 'web_search' is not served"),
        (
            "chat",
            {"tool_choice": {"type": "allowed_tools", "mode": "any"}},
            'the mode \'any\'; use "auto" or "required"',
        ),
        ("chat", {"response_format": {"type": "grammar"}}, "response_format: 'grammar' is not served"),
        ("responses", {"text": {"format": {"type": "json_schema", "schema": []}}}, "text.format.schema must be"),
        ("chat", {"logprobs": True}, "logprobs: .*leave it out"),
        ("responses", {"include": ["message.output_text.logprobs"]}, "include: the log-probs stay"),
        ("responses", {"background": True}, "background: .*leave it out"),
        (
            "responses",
            {"input": [{"type": "item_reference", "id": "x"}]},
            r"input\[0\]: no item of this session .*the item itself",
        ),
        ("messages", {"mcp_servers": [{}]}, "mcp_servers: .*leave it out"),
        ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "declare the tool with its input_schema"),
        ("chat", {"functions": [{}]}, "functions: .*use tools"),
        *(
            (wire, {"tools": [{"type": kind}]}, rf"tools\[0\]: the type '{kind}' is OpenAI's own; declare .* function")
            for wire in ("responses", "chat")
            for kind in ("local_shell", "shell", "apply_patch", "computer_use_preview")
        ),
        ("chat", {"n": 0}, "n must be a positive whole number"),
        ("chat", {"max_tokens": 0}, "max_tokens must be a positive whole number"),
        ("chat", {"messages": []}, "messages: at least one"),
        ("responses", {"input": None}, "input: a text, or at least one item"),
        ("chat", {"messages": [{"role": "function", "content": "x"}]}, r"messages\[0\].role must be one of"),
        ("chat", {"messages": ["x"]}, r"messages\[0\] must be an object"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]}, "is not served"),
    ],
)
def test_what_is_not_served_is_refused_by_name(wire, body, words):
    with pytest.raises(
        RefusedError, match=words.replace("[0].content", r"\[0\].content").replace("content[0]", r"content\[0\]")
    ) as told:
        read(wire, **body)
    assert (told.value.kind, told.value.status) == ("invalid", 400)
    assert "\n" not in str(told.value)


def test_halves_of_characters_do_not_reach_the_tokenizer():
    body = read_body(json.dumps({"messages": [{"role": "user", "content": "\ud800 \\u"}]}).encode())
    assert WIRES["chat"].read(body, {}, "").request.entries == (Entry("user", "\ufffd \\u"),)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b'"x"', b"[" * 100_000])
def test_a_body_that_is_no_object(raw):
    with pytest.raises(RefusedError, match="body"):
        read_body(raw)


def relaxed(wire, options, **body):
    return WIRES[wire].read(LEAST[wire] | body, {}, "digest", options).request


OMIT, IGNORE = SessionOptions(images="omit"), SessionOptions(forced="ignore")
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
IMAGES = {
    "messages": {
        "messages": [
            {"role": "user", "content": [text("See."), IMAGE, PDF]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("a"), IMAGE]}]},
        ]
    },
    "chat": {
        "messages": [
            {"role": "user", "content": [text("See."), {"type": "image_url"}, {"type": "file"}]},
            {"role": "tool", "tool_call_id": "c1", "content": [text("a"), {"type": "image_url"}]},
        ]
    },
    "responses": {
        "input": [
            {"role": "user", "content": [text("See."), {"type": "input_image"}, {"type": "input_file"}]},
            {"type": "function_call_output", "call_id": "c1", "output": [text("a"), {"type": "input_image"}]},
        ]
    },
}


@pytest.mark.parametrize("wire", WIRES)
def test_images_can_be_left_out_with_a_mark(wire):
    request = relaxed(wire, OMIT, **IMAGES[wire])
    image = "[image omitted: this model reads text only]"
    file = image.replace("image", "document" if wire == "messages" else "file")
    assert [entry.text for entry in request.entries] == ["See.", image, file, f"a\n{image}"]
    assert request.recorded == {"images_omitted": 3}
    with pytest.raises(RefusedError, match=r"text only.*SessionOptions\(images='omit'\)"):
        read(wire, **IMAGES[wire])


def test_only_contents_are_searched_for_images():
    arguments = {"content": [IMAGE]}
    plain = {"type": "document", "source": {"type": "text", "data": "words"}}
    sent = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "draw", "input": arguments}]},
        {"role": "user", "content": [plain]},
    ]
    request = relaxed("messages", OMIT, messages=sent)
    assert (request.entries[0].calls[0].arguments, request.entries[1].text) == (arguments, "words")
    assert request.recorded == {}


@pytest.mark.parametrize("body", [{"messages": 1}, {"messages": [1]}, {"messages": [{"role": "user", "content": [1]}]}])
def test_a_body_of_another_shape_is_refused_as_it_was(body):
    with pytest.raises(RefusedError, match="messages"):
        relaxed("messages", SessionOptions(images="omit", forced="ignore"), **body)


SCHEMA = {"type": "json_schema"}


@pytest.mark.parametrize(
    ("wire", "body", "recorded"),
    [
        ("chat", {"tool_choice": "required"}, {"tool_choice": "required"}),
        ("chat", {"response_format": SCHEMA}, {"response_format": "json_schema"}),
        ("messages", {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "any"}}),
        ("messages", {"output_format": SCHEMA}, {"output_format": "json_schema"}),
        ("messages", {"output_config": {"effort": "low", "format": SCHEMA}}, {"output_config.format": "json_schema"}),
        (
            "responses",
            {"tool_choice": {"type": "function", "name": "look"}},
            {"tool_choice": {"type": "function", "name": "look"}},
        ),
        ("responses", {"text": {"verbosity": "low", "format": SCHEMA}}, {"text.format": "json_schema"}),
        ("responses", {"tool_choice": "none", "text": {"format": {"type": "text"}}}, {}),
        ("chat", {"tool_choice": "auto", "response_format": {"type": "text"}}, {}),
    ],
)
def test_what_is_forced_can_be_ignored(wire, body, recorded):
    if recorded:
        with pytest.raises(RefusedError, match=r"SessionOptions\(forced='ignore'\)"):
            relaxed(wire, SessionOptions(forced="refuse"), **body)
    request = relaxed(wire, IGNORE, **body)
    assert request.recorded.get("forced_ignored", {}) == recorded
    assert request == replace(read(wire), recorded=request.recorded, effort=request.effort)
