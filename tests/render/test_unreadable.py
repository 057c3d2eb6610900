"""Templates whose own turns cannot be read back, or lose what is said: refused when they are loaded."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import load_renderer
from tests.render.conftest import CHATML_TOOLS, LOOKUP, TAGS, chatml_tokenizer

SAID = "'<|im_start|>assistant\n' + m.content"
CALL = '<tool_call>\n{"name": "'
THOUGHT = "'<|im_start|>assistant\n' + ('<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '')"


def changed(old: str, new: str) -> str:
    assert CHATML_TOOLS.count(old) == 1
    return CHATML_TOOLS.replace(old, new)


ALWAYS = {
    "a thought ends with the stop token": (
        changed(SAID, THOUGHT.replace("'</think>'", "'</think><|im_end|>'") + " + m.content"),
        r"the stop token '<\|im_end\|>' is inside the turn",
    ),
    "an answer begins with a stop token": (
        changed(SAID, "'<|im_start|>assistant\n<|im_end|>' + m.content"),
        r"cannot be (read back|continued exactly)|does not close",
    ),
    "a thought runs into the answer": (
        changed(SAID, THOUGHT.replace("'<think>' + ", "").replace(" + '</think>'", "") + " + m.content"),
        "cannot be read back: the answer",
    ),
    "only the first line of an answer": (
        changed(SAID, "'<|im_start|>assistant\n' + m.content.split('\n')[0]"),
        "cannot be read back: the template leaves out a part of the answer",
    ),
    "only the first words of a question": (
        changed("m.role + '\n' + m.content", "m.role + '\n' + m.content[:12]"),
        "leaves out a part of a message of the user",
    ),
    "an answer in capitals": (
        changed(SAID, "'<|im_start|>assistant\n' + (m.content if 'zq' in m.content else m.content | upper)"),
        "leaves out a part of the answer",
    ),
}
WITH_TOOLS = {
    "a call begins with the stop token": (changed(CALL, f"<|im_end|>{CALL}"), "is inside the turn"),
    "a part of a call's id is a marker": (
        changed('<tool_call>\n{"name": "\' + ', "<tool_call>' + c.id[:4] + '|' + ")
        .replace('\'", "arguments": \'', "'|'")
        .replace("'}\n</tool_call>'", "'</tool_call>'"),
        "no format of calls was found|are read as",
    ),
    "arguments without their keys": (
        changed("c.function.arguments | tojson", "c.function.arguments.values() | list | tojson"),
        "no format of calls was found|are read as",
    ),
    "only the first argument": (
        changed("c.function.arguments | tojson", "(c.function.arguments.items() | list)[:1] | tojson"),
        "no format of calls was found|are read as",
    ),
    "a number for every string of digits": (
        changed("c.function.arguments | tojson", "c.function.arguments | tojson | replace('\"12\"', '12')"),
        "no format of calls was found|are read as",
    ),
}


def tokenizer(source: str) -> Any:
    return chatml_tokenizer(*TAGS, template=source)


@pytest.mark.parametrize("name", ALWAYS)
def test_refused(name: str) -> None:
    source, why = ALWAYS[name]
    for tools in ([], [LOOKUP]):
        with pytest.raises(TemplateError, match=why):
            load_renderer(tokenizer(source), tools=tools)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_refused_with_tools(name: str) -> None:
    source, why = WITH_TOOLS[name]
    with pytest.raises(TemplateError, match=why):
        load_renderer(tokenizer(source), tools=[LOOKUP])
    certificate = load_renderer(tokenizer(source)).certificate
    assert (certificate.level, certificate.capabilities["calls"]) == ("keeps-history", False)
    assert any("without tools only" in departure for departure in certificate.departures)


def test_the_sound_template_is_not() -> None:
    assert load_renderer(tokenizer(CHATML_TOOLS), tools=[LOOKUP]).certificate.level == "exact"


def test_tools_that_the_template_cannot_write_are_refused_at_load() -> None:
    typed = CHATML_TOOLS.replace(
        "{%- for t in tools -%}",
        "{%- for t in tools -%}{%- for p in t.function.parameters.properties.values() if p.type == 'object' -%}"
        "{{- p.additionalProperties.type | upper -}}{%- if not p.additionalProperties -%}"
        "{{- raise_exception('no additionalProperties') -}}{%- endif -%}{%- endfor -%}",
    )
    where = {**LOOKUP["function"], "parameters": {"type": "object", "properties": {"where": {"type": "object"}}}}
    with pytest.raises(TemplateError, match='cannot write the tools lookup; it wants "additionalProperties"'):
        load_renderer(tokenizer(typed), tools=[{"type": "function", "function": where}])
    assert load_renderer(tokenizer(typed), tools=[LOOKUP])


def described(**places: Any) -> list[dict[str, Any]]:
    """Two tools, of which the first is written by every template."""
    given = {"now": {}, "seek": places}
    return [
        {"type": "function", "function": {"name": name, "description": "?", "parameters": {"properties": properties}}}
        for name, properties in given.items()
    ]


@pytest.mark.parametrize(
    ("place", "wants"),
    [
        ({"type": "string"}, '"description" of every tool and parameter'),
        ({"type": "object", "description": "Where."}, '"additionalProperties" in every parameter that is an object'),
        ({"type": "object"}, '"additionalProperties" .* and a "description"'),
    ],
)
def test_the_remedy_names_all_that_the_template_wants_and_only_the_tools_it_refuses(place: Any, wants: str) -> None:
    source = CHATML_TOOLS.replace(
        "{%- for t in tools -%}",
        "{%- macro type(s) -%}{{- 'Dict[' + type(s.additionalProperties) + ']' if s.type == 'object' else s.type -}}"
        "{%- endmacro -%}{%- for t in tools -%}{%- for k, p in t.function.parameters.properties.items() -%}"
        "{{- k + ' (' + type(p) + '): ' + p.description -}}{%- endfor -%}",
    )
    with pytest.raises(TemplateError, match=f"cannot write the tools seek; it wants .*{wants}"):
        load_renderer(tokenizer(source), tools=described(place=place))
    fine = {"type": "object", "additionalProperties": {"type": "string"}, "description": "Where."}
    assert load_renderer(tokenizer(source), tools=described(place=fine))
