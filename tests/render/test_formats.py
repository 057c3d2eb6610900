"""Formats of calls, found by round trip in small templates that are nobody's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.render.read.lexer import Lexer
from agentrl.render.template import Template
from tests.render.conftest import CHATML_TOOLS, make_tokenizer

MARKERS = ("<|im_start|>", "<|im_end|>", "<|call|>", "<|sep|>", "<|end_call|>", "<|calls|>", "<|end_calls|>", '<|"|>')
PLAIN = ("<think>", "</think>")

JSON_ARGS = "c.function.arguments | tojson"
TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' -}}{%- endif -%}"
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' + m.content -}}"
    "{%- if m.tool_calls -%}BEFORE{%- for c in m.tool_calls -%}CALL{%- endfor -%}AFTER{%- endif -%}"
    "{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
PAIRS = "{%- for k, v in c.function.arguments.items() -%}PAIR{%- endfor -%}"
VALUE = "(v if v is string else v | tojson)"


def pairs(open: str, between: str, close: str, value: str = VALUE) -> str:  # noqa: A002
    return PAIRS.replace("PAIR", "{{- '" + open + "' + k + '" + between + "' + " + value + " + '" + close + "' -}}")


def written(text: str) -> str:
    return "{{- '" + text + "' -}}"


NAME = "{{- c.function.name -}}"
FORMATS = {
    "an object between markers": (
        "", written("<|call|>") + "{{- {'name': c.function.name, 'parameters': c.function.arguments} | tojson -}}"
        + written("<|end_call|>"), "",
    ),
    "an array of objects with ids": (
        written("[TOOLS] ["), "{{- {'id': c.id, 'tool': c.function.name, 'args': c.function.arguments} | tojson -}}"
        "{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}", written("]"),
    ),
    "objects with the name as their key": (
        written("<|calls|>["), "{{- {c.function.name: c.function.arguments} | tojson -}}"
        "{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}", written("]<|end_calls|>"),
    ),
    "a name, a marker and JSON": (
        "", written("<|call|>") + NAME + written("<|sep|>") + "{{- " + JSON_ARGS + " -}}" + written("<|end_call|>"), "",
    ),
    "a block of named calls with ids": (
        written("<|calls|>"), written("<|call|>") + NAME + "{{- '<|sep|>' + c.id + '<|sep|>' -}}"
        + "{{- " + JSON_ARGS + " -}}" + written("<|end_call|>\n"), written("<|end_calls|>"),
    ),
    "a name and a number": (
        "", written("<|call|>") + NAME + "{{- ':' + loop.index0 | string + '<|sep|>' + " + JSON_ARGS + " -}}"
        + written("<|end_call|>"), "",
    ),
    "a function tag": ("", written("<function=") + NAME + written(">") + "{{- " + JSON_ARGS + " -}}</function>", ""),
    "parameters in tags": (
        written("\n"), written("<tool>\n<function=") + NAME + written(">\n")
        + pairs("<parameter=", ">\n", "\n</parameter>\n") + written("</function>\n</tool>\n"), "",
    ),
    "keys and values in tags": (
        "", written("<tool>") + NAME + written("\n") + pairs("<key>", "</key>\n<value>", "</value>\n")
        + written("</tool>"), "",
    ),
    "values as Python writes them": (
        "", written("<tool><f=") + NAME + written(">") + pairs("<p=", ">", "</p>", "v | string")
        + written("</f></tool>"), "",
    ),
    "bare keys and quoted strings": (
        "", "{%- macro value(v) -%}{%- if v is string -%}{{- '<|\"|>' + v + '<|\"|>' -}}{%- elif v is mapping -%}"
        "{{- '{' -}}{%- for k, w in v.items() -%}{{- k + ':' + value(w) + (',' if not loop.last else '') -}}"
        "{%- endfor -%}{{- '}' -}}{%- else -%}{{- v | tojson -}}{%- endif -%}{%- endmacro -%}"
        + written("<|call|>call:") + NAME + "{{- value(c.function.arguments) -}}" + written("<|end_call|>"), "",
    ),
}  # fmt: skip

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find it.",
        "parameters": {
            "type": "object",
            "properties": {
                "what": {"type": "string"},
                "many": {"type": "array"},
                "deep": {"type": "object"},
                "yes": {"type": "boolean"},
            },
        },
    },
}
ARGUMENTS = {"what": "12", "many": [1, 2.5], "deep": {"a": 'x <b> "y"'}, "yes": True}


def source(name: str) -> str:
    before, call, after = FORMATS[name]
    return TEMPLATE.replace("BEFORE", before).replace("CALL", call).replace("AFTER", after)


def opened(template: str) -> tuple[Renderer, Any]:
    tokenizer = make_tokenizer(MARKERS, PLAIN, eos="<|im_end|>", template=template)
    return load_renderer(tokenizer, tools=[TOOL]), tokenizer


def turn(*arguments: dict[str, Any], content: str = "") -> dict[str, Any]:
    calls = [
        {"id": f"abc12345{i}", "type": "function", "function": {"name": "find", "arguments": one}}
        for i, one in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


@pytest.mark.parametrize("name", FORMATS)
def test_calls_round_trip(name: str) -> None:
    renderer, _ = opened(source(name))
    assert renderer.certificate.level == "exact"
    assert renderer.certificate.capabilities["calls"]
    for calls in ([ARGUMENTS], [ARGUMENTS, {"what": "x"}], [{}], [{"what": ""}] * 3):
        tokens = renderer.encode(turn(*calls, content="Let me see."))
        action = renderer.parse(tokens, "stop", tokens[-1])
        assert [(call.name, call.arguments, call.error) for call in action.calls] == [
            ("find", one, None) for one in calls
        ]
        assert action.content == "Let me see."


@pytest.mark.parametrize("name", FORMATS)
def test_any_beginning_of_a_turn_can_be_parsed(name: str) -> None:
    renderer, _ = opened(source(name))
    tokens = renderer.encode(turn(ARGUMENTS, {"what": "x"}))
    for cut in range(0, len(tokens), 3):
        action = renderer.parse(tokens[:cut], "stop")
        good = [call for call in action.calls if call.error is None]
        assert [call.arguments for call in good] == [ARGUMENTS, {"what": "x"}][: len(good)]
        assert len(action.calls) <= 2


def test_ids_are_those_that_were_sampled() -> None:
    for name in ("an array of objects with ids", "a block of named calls with ids"):
        renderer, _ = opened(source(name))
        tokens = renderer.encode(turn({"what": "x"}, {"what": "y"}))
        action = renderer.parse(tokens, "stop", tokens[-1])
        assert [call.id for call in action.calls] == ["abc123450", "abc123451"]


def test_an_id_that_the_template_refuses_is_replaced_in_what_follows() -> None:
    strict = "{%- if c.id | length != 9 -%}{{- raise_exception('nine') -}}{%- endif -%}"
    template = source("an array of objects with ids").replace("{{- {'id'", strict + "{{- {'id'")
    template = template.replace("+ m.content -}}", "+ (m.tool_call_id or '') + m.content -}}")
    renderer, _ = opened(template)
    message = turn({"what": "x"})
    tokens = renderer.encode(message)
    action = renderer.parse(tokens, "stop", tokens[-1])
    odd = replace(action, calls=(replace(action.calls[0], id="abc"),))
    for call_id, shown, action_ in (("abc123450", "abc123450", action), ("abc", "call00000", odd)):
        new = [{"role": "tool", "tool_call_id": call_id, "content": "found"}]
        assert f"{shown}found<|im_end|>" in renderer.decode(renderer.bridge([], action_, new).tokens)


def test_arguments_as_json_text_where_the_template_wants_that() -> None:
    call = written("<|call|>") + NAME + "{{- '<|sep|>' + c.function.arguments + '<|end_call|>' -}}"
    renderer, _ = opened(TEMPLATE.replace("BEFORE", "").replace("CALL", call).replace("AFTER", ""))
    tokens = renderer.encode(turn(ARGUMENTS))
    assert renderer.parse(tokens, "stop", tokens[-1]).calls[0].arguments == ARGUMENTS


def test_a_turn_that_only_the_next_message_ends() -> None:
    """The special token that ends a call is no end of a turn."""
    call = "{{- '<|call|>' + c.function.name + '<|sep|>' + c.function.arguments | tojson + '<|end_call|>' -}}"
    template = (
        "{%- if tools -%}{{- '<|system|>' + tools | tojson -}}{%- endif -%}"
        "{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content -}}"
        "{%- for c in m.tool_calls or [] -%}" + call + "{%- endfor -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
    )
    special = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>", "<|sep|>", "<|end_call|>", "<|eos|>")
    tokenizer = make_tokenizer(special, eos="<|eos|>", template=template)
    renderer = load_renderer(tokenizer, tools=[TOOL])
    assert {renderer.decode([token]) for token in renderer.stop_token_ids} == {"<|user|>", "<|tool|>", "<|eos|>"}
    tokens = renderer.encode(turn(ARGUMENTS, {}))
    assert renderer.decode(tokens[-2:]) == "<|end_call|><|tool|>"
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert [call.arguments for call in action.calls] == [ARGUMENTS, {}]
    new = [{"role": "tool", "content": "found"}, {"role": "tool", "content": "lost"}]
    assert renderer.decode(renderer.bridge([], action, new).tokens) == "found<|tool|>lost<|assistant|>"
    ended = renderer.parse([*tokens[:-1], tokenizer.eos_token_id], "stop", tokenizer.eos_token_id)
    assert renderer.decode(renderer.bridge([], ended, new).tokens) == "<|tool|>found<|tool|>lost<|assistant|>"


def test_thoughts_between_other_markers() -> None:
    said = "'<|im_start|>' + m.role + '\n' + m.content"
    thought = "'<|im_start|>' + m.role + '\n' + ('<muse>' + m.reasoning + '</muse>' if m.reasoning else '') + m.content"
    template = source("a name, a marker and JSON")
    assert said in template
    renderer, _ = opened(template.replace(said, thought))
    assert renderer.certificate.capabilities["thinking"]
    tokens = renderer.encode({**turn(ARGUMENTS), "reasoning_content": "hm <|call|>find"})
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert (action.reasoning, len(action.calls), action.content) == ("hm <|call|>find", 1, "")
    assert renderer.parse(tokens[:6], "stop").reasoning is not None


def test_a_template_that_breaks_on_calls_says_why() -> None:
    call = "{%- set _ = ns.ids.append(c.id) -%}"
    template = "{%- set ns = namespace(ids=[]) -%}" + TEMPLATE.replace("BEFORE", "").replace("CALL", call)
    with pytest.raises(TemplateError, match=r"sandbox .*append"):
        opened(template.replace("AFTER", ""))
    with pytest.raises(TemplateError, match=r"chat_template_kwargs\): 'datetime' is undefined"):
        opened("{{ 'Today is ' + datetime }}" + CHATML_TOOLS)


def test_a_look_alike_is_blank_in_the_syntax_and_stays_in_the_text() -> None:
    _, tokenizer = opened(source("a name, a marker and JSON"))
    template = Template.of(tokenizer, None, [], {})
    lexed = Lexer(template, ["<|call|>", "[TOOLS]"])(
        [token for char in "<|call|>[TOOLS]" for token in tokenizer.encode(char)] + tokenizer.encode("<|call|>")
    )
    assert lexed.text == "<|call|>[TOOLS]<|call|>"
    assert lexed.syntax == "\x00" * 8 + "[TOOLS]<|call|>"
