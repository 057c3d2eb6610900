"""A turn begins as its place asks for: after a tool's result a template may open a thought, and it may number calls."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from agentrl.engine import ScriptedEngine
from agentrl.render import Renderer, load_renderer
from agentrl.render.ids import has_name, with_named_ids, with_plain_ids
from agentrl.rollout.data.chat_rows import ChatReader
from agentrl.types import Message
from tests.render.conftest import sentencepiece_tokenizer
from tests.render.markers import made_files, small_tokenizer, template_files, tokenizer_of

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
TURNS = """{%- if tools -%}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{%- set after = loop.previtem.role if loop.previtem is defined else '' -%}
{%- if m.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' -}}
{%- if HISTORY -%}{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' -}}{%- else -%}ELSE{%- endif -%}
{{- m.content or '' -}}
{%- for c in m.tool_calls or [] -%}
{{- '<tool_call>\\n' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '\\n</tool_call>' -}}
{%- endfor -%}{{- '<|im_end|>\\n' -}}
{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}PROMPT{%- endif -%}"""
OPEN, CLOSED = "{{- '<think>\\n' -}}", "{{- '<think>\\n\\n</think>\\n\\n' -}}"


def template(history: str, prompt: str, otherwise: str = "") -> str:
    return TURNS.replace("HISTORY", history).replace("PROMPT", prompt).replace("ELSE", otherwise)


OPENS = {
    "after a result": template(
        "after == 'tool' or m.reasoning_content", "{%- if messages[-1].role == 'tool' -%}" + OPEN + "{%- endif -%}"
    ),
    "after a user": template(
        "after == 'user' or m.reasoning_content", "{%- if messages[-1].role == 'user' -%}" + OPEN + "{%- endif -%}"
    ),
    "after a user, closed after a result": template(
        "after != 'tool'",
        "{%- if messages[-1].role == 'tool' -%}" + CLOSED + "{%- else -%}" + OPEN + "{%- endif -%}",
        CLOSED,
    ),
    "unless the system message forbids it": template(
        "'/quiet' not in messages[0].content",
        "{%- if '/quiet' in messages[0].content -%}" + CLOSED + "{%- else -%}" + OPEN + "{%- endif -%}",
        CLOSED,
    ),
    "always": template("true", OPEN),
    "never": template("m.reasoning_content", ""),
}  # fmt: skip
"""Templates by where their generation prompt opens a thought."""


def called(call_id: str, q: str) -> Message:
    function = {"name": "look", "arguments": {"q": q}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": "look", "content": content}


def conversation(*ids: str, system: str = "", thoughts: bool = False) -> list[Message]:
    first, second = ids
    turns: list[Message] = [called(first, "a"), called(second, "b"), {"role": "assistant", "content": "Both."}]
    last: Message = {"role": "assistant", "content": "No."}
    if thoughts:
        turns = [{**turn, "reasoning_content": f"Thought {i}."} for i, turn in enumerate(turns)]
        last = {**last, "reasoning_content": "The last."}
    before: list[Message] = [{"role": "system", "content": system}] if system else []
    before.append({"role": "user", "content": "One?"})
    answers = [result(first, "of a"), result(second, "of b"), {"role": "user", "content": "More?"}]
    return before + [message for pair in zip(turns, answers, strict=True) for message in pair] + [last]


def learned(renderer: Renderer, messages: list[Message]) -> str:
    row: Any = {"messages": messages, "tools": [LOOK]}
    return renderer.decode(ChatReader(renderer=renderer, context=1 << 16).read(row).trajectory.tokens)


def whole(tokenizer: Any, messages: list[Message]) -> str:
    text: str = tokenizer.apply_chat_template(messages, tools=[LOOK], tokenize=False)
    return text.rstrip("\n")


@pytest.mark.parametrize("system", ["Be brief.", "Be brief. /quiet"])
@pytest.mark.parametrize("thoughts", [False, True])
@pytest.mark.parametrize("name", OPENS)
def test_a_row_of_chat_is_written_as_the_template_writes_it(name: str, thoughts: bool, system: str) -> None:
    if thoughts and ("closed" in name or "/quiet" in system):
        pytest.skip("the template drops thoughts where it writes an empty one")
    tokenizer = small_tokenizer(OPENS[name])
    renderer = load_renderer(tokenizer, tools=[LOOK])
    messages = conversation("abcdefgh1", "abcdefgh2", system=system, thoughts=thoughts)
    assert learned(renderer, messages) == whole(tokenizer, messages)


@pytest.mark.parametrize("name", OPENS)
async def test_a_script_closes_the_thought_that_its_prompt_opened(name: str) -> None:
    renderer = load_renderer(small_tokenizer(OPENS[name]), tools=[LOOK])
    messages = conversation("abcdefgh1", "abcdefgh2", system="Be brief.")
    for end in (2, 4, 8):
        rendered = renderer.prompt(messages[:end])
        engine = ScriptedEngine(["Paris."], renderer)
        played = await engine.generate(rendered.tokens, {})
        action = renderer.parse(played.tokens, "stop", played.tokens[-1], thinking=rendered.thinking)
        assert action.content == "Paris.", (name, end)
        assert "<think>" not in renderer.decode(played.tokens), (name, end)


def opened(name: str) -> tuple[Renderer, Any]:
    path = next(path for path in [*made_files(), *template_files()] if path.stem == name)
    return load_renderer(tokenizer_of(path), tools=[LOOK]), tokenizer_of(path)


NUMBERED = small_tokenizer(
    """{%- set calls = namespace(n=0) -%}
{%- if tools -%}{{- '<|im_system|>tools<|im_middle|>' + tools | tojson + '<|im_end|>' -}}{%- endif -%}
{%- for m in messages -%}{{- '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' + (m.content or '') -}}
{%- if m.tool_calls -%}{{- '<|section_begin|>' -}}{%- for c in m.tool_calls -%}
{{- '<|call_begin|>functions.' + c.function.name + ':' + calls.n | string + '<|argument_begin|>' -}}
{{- c.function.arguments | tojson + '<|call_end|>' -}}{%- set calls.n = calls.n + 1 -%}
{%- endfor -%}{{- '<|section_end|>' -}}{%- endif -%}{{- '<|im_end|>' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}"""
)
"""A template that makes each id itself, from the number of the call in the conversation."""


@pytest.mark.parametrize("ids", [("functions.look:3", "functions.look:7"), ("look:3", "look:4")])
def test_ids_that_contain_the_name_stay(ids: tuple[str, str]) -> None:
    renderer, _ = opened("name_in_id")
    text = learned(renderer, conversation(*ids))
    for call_id in ids:
        assert f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>" in text
        assert f"## Return of {call_id}\n" in text
    prompt = renderer.decode(renderer.prompt(conversation(*ids)).tokens)
    assert [prompt.count(call_id) for call_id in ids] == [2, 2]


@pytest.mark.parametrize("ids", [("call_abc", "call_def"), ("abcdefgh1", "abcdefgh1"), ("toolu_01", "toolu_02")])
def test_other_ids_are_numbered_through_the_conversation(ids: tuple[str, str]) -> None:
    renderer, _ = opened("name_in_id")
    for text in (learned(renderer, conversation(*ids)), renderer.decode(renderer.prompt(conversation(*ids)).tokens)):
        for number in (0, 1):
            assert f"<|tool_call_begin|>functions.look:{number}<|" in text
            assert f"## Return of functions.look:{number}\nof {'ab'[number]}" in text


def test_a_template_that_numbers_calls_goes_on_counting() -> None:
    messages = conversation("call_abc", "call_def")
    assert learned(load_renderer(NUMBERED, tools=[LOOK]), messages) == whole(NUMBERED, messages)


async def test_a_script_goes_on_counting() -> None:
    renderer, _ = opened("name_in_id")
    prompt = renderer.prompt(conversation("functions.look:3", "functions.look:4"))
    engine = ScriptedEngine([called("c00000001", "x"), called("functions.look:9", "x")], renderer)
    for call_id in ("functions.look:5", "functions.look:9"):
        played = await engine.generate(prompt.tokens, {}, session_id="s")
        (call,) = renderer.parse(played.tokens, "stop", played.tokens[-1]).calls
        assert (call.id, call.name) == (call_id, "look")


def test_ids_of_another_form_are_made_nine_letters_where_a_template_wants_them() -> None:
    for name in ("Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407"):
        renderer, tokenizer = opened(name)
        text = renderer.decode(renderer.prompt(conversation("functions.look:0", "call_2")[:5]).tokens)
        assert "functions.look" not in text
        assert "of b" in text
        assert "of b" in learned(renderer, conversation("functions.look:0", "call_2"))
        plain = conversation("abcdefgh1", "abcdefgh2")[:5]
        assert renderer.decode(renderer.prompt(plain).tokens) == tokenizer.apply_chat_template(
            plain, tools=[LOOK], tokenize=False
        )


def test_names_of_ids() -> None:
    assert has_name("functions.look:3", "look")
    assert has_name("look:0", "look")
    assert not has_name("functions.looking:3", "look")
    assert not has_name("look", "look")
    assert not has_name("call_look_3", "look")
    messages: list[Message] = [called("x", "a"), result("x", "1"), called("x", "b"), result("x", "2"), result("y", "3")]
    ids = [message.get("tool_call_id") or message["tool_calls"][0]["id"] for message in with_named_ids(messages, 4)]
    assert ids == ["functions.look:4", "functions.look:4", "functions.look:5", "functions.look:5", "y"]
    plain = [message.get("tool_call_id") or message["tool_calls"][0]["id"] for message in with_plain_ids(messages)]
    assert plain[0] == plain[3] != plain[4]
    assert {len(call_id) for call_id in plain} == {9}


CLOCKS = {
    "weekday": "{%- set days = {'Monday': 1, 'Tuesday': 2, 'Wednesday': 3, 'Thursday': 4, 'Friday': 5, 'Saturday': 6, "
    "'Sunday': 7} -%}{{- strftime_now('%Y-%m-%d %H:%M:%S') ~ days[strftime_now('%A')] -}}",
    "parts": "{%- set d = strftime_now('%d/%m/%Y').split('/') -%}{{- ['J', 'F', 'M', 'A', 'M', 'J', 'J', 'A', 'S', "
    "'O', 'N', 'D'][d[1] | int - 1] ~ d[0] | int -}}",
    "fractions": "{{- 'now: ' + strftime_now('%S.%f') -}}",
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_template_may_look_at_the_clock(clock: str) -> None:
    """Also one that shows every microsecond: each piece of work has one moment."""
    tokenizer = small_tokenizer(CLOCKS[clock] + OPENS["never"])
    renderer = load_renderer(tokenizer, tools=[LOOK])
    assert renderer.certificate.level == "exact"
    messages = conversation("abcdefgh1", "abcdefgh2")
    prompt = renderer.prompt(messages[:1])
    assert [span.kind for span in prompt.spans] == ["observation", "prompt"]
    assert learned(renderer, messages).endswith("No.<|im_end|>")


def test_the_clock_of_a_prompt_is_the_time() -> None:
    renderer = load_renderer(small_tokenizer("{{- strftime_now('%Y-%m') -}}" + OPENS["never"]), tools=[LOOK])
    before = f"{datetime.now():%Y-%m}"
    text = renderer.decode(renderer.prompt("One?").tokens)
    assert text.startswith((before, f"{datetime.now():%Y-%m}"))


def test_no_second_space_behind_a_stop_string() -> None:
    """A tokenizer that puts a space before its input must not put one behind a turn that no special token ended."""
    tokenizer = sentencepiece_tokenizer()
    tokenizer.add_tokens(["<s>", "</s>", "[INST]", "[/INST]"], special_tokens=True)
    tokenizer.eos_token = "</s>"
    tokenizer.chat_template = (
        "{{- '<s>' -}}{%- for m in messages -%}{%- if m.role == 'assistant' -%}{{- ' ' + m.content + ' </s>' -}}"
        "{%- else -%}{{- '[INST] ' + m.content + ' [/INST]' -}}{%- endif -%}{%- endfor -%}"
    )
    renderer = load_renderer(tokenizer)
    history: list[Message] = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "It is mild. END"}]
    template = renderer.turns.template  # type: ignore[attr-defined]
    turn = template.encode(" It is mild. END", after="[/INST]")
    action = renderer.parse(turn, "stop", "END")
    bridge = renderer.bridge(history, action, [{"role": "user", "content": "More?"}])
    assert tokenizer.convert_ids_to_tokens(list(bridge.tokens[:2])) == ["▁", "</s>"]
    prompt = renderer.prompt(history[:1])
    text = tokenizer.apply_chat_template([*history, {"role": "user", "content": "More?"}], tokenize=False)
    assert [*prompt.tokens, *turn, *bridge.tokens] == tokenizer.encode(text, add_special_tokens=False)
