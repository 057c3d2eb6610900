"""Formats of calls that a template does not show: usual formats for templates without calls, and second formats of the
models of a template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.render.formats.as_json import AsJson
from agentrl.render.formats.json_calls import JsonCalls
from agentrl.render.formats.kwargs import AsKwargs
from agentrl.render.formats.named_calls import NamedCalls
from agentrl.render.read.calls import Block, head
from agentrl.render.read.lexer import has_tag
from agentrl.render.template import Template

Functions = Sequence[Mapping[str, Any]]
"""The called functions, each a mapping with `name` and `arguments`."""
_MISTRAL = "[TOOL_CALLS]"


@dataclass(frozen=True, slots=True)
class Convention:
    """A usual format of calls. `mark` is the text by which the format is recognized, `example` shows a call."""

    mark: str
    example: str
    block: Block
    write: Callable[[Functions], str]


def in_a_list(calls: JsonCalls) -> Block:
    """A Block for the same calls in a JSON array between their markers, as some models write several calls."""
    inner = replace(calls, open="", close="", in_block=True)
    return Block(inner, f"{calls.open}[", f"]{calls.close}")


def with_second_spellings(block: Block) -> Block:
    """The block, extended by other formats of the models of such a template: calls in an array, or another of Mistral's
    formats."""
    calls = block.calls
    if isinstance(calls, JsonCalls) and not block.open and has_tag(calls.open) and has_tag(calls.close):
        return replace(block, others=(in_a_list(calls),))
    if isinstance(calls, JsonCalls) and head(block.open) == _MISTRAL:
        return replace(block, others=(Block(NamedCalls(_MISTRAL, "[ARGS]", "", AsJson())),))
    if isinstance(calls, NamedCalls) and calls.open == _MISTRAL:
        return replace(block, others=(in_a_list(JsonCalls(_MISTRAL, "")),))
    return block


def _tagged(functions: Functions) -> str:
    return "\n".join(f"<tool_call>\n{_object(function)}\n</tool_call>" for function in functions)


def _pythonic(functions: Functions) -> str:
    return f"<|tool_call_start|>[{', '.join(map(_python, functions))}]<|tool_call_end|>"


def _listed(functions: Functions) -> str:
    return f"<|tool_call|>[{', '.join(map(_object, functions))}]"


def _object(function: Mapping[str, Any]) -> str:
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


def _python(function: Mapping[str, Any]) -> str:
    arguments = (
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)}"
        for key, value in function["arguments"].items()
    )
    return f"{function['name']}({', '.join(arguments)})"


TAGGED = Convention(
    "<tool_call>",
    "<tool_call>{json}",
    with_second_spellings(Block(JsonCalls("<tool_call>", "</tool_call>"))),
    _tagged,
)
"""The format of Hermes and Qwen, on which most models are trained."""
PYTHONIC = Convention(
    "<|tool_call_start|>",
    '<|tool_call_start|>[name(key="value")]',
    Block(
        NamedCalls("", "(", ")", AsKwargs()),
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        others=(in_a_list(JsonCalls("<|tool_call_start|>", "<|tool_call_end|>")),),
    ),
    _pythonic,
)
"""The format of LFM2."""
LISTED = Convention("<|tool_call|>", "<|tool_call|>[{json}]", in_a_list(JsonCalls("<|tool_call|>", "")), _listed)
"""The format of Granite 3."""
CONVENTIONS = (TAGGED, PYTHONIC, LISTED)


def convention_of(template: Template) -> Convention:
    """The first convention whose mark is in the template's text, else the first whose mark is a token, else the most
    common."""
    in_source = [convention for convention in CONVENTIONS if convention.mark in template.source]
    as_token = [convention for convention in CONVENTIONS if _is_token(template, convention.mark)]
    return next(iter((*in_source, *as_token)), TAGGED)


def conventional(template: Template) -> Block:
    """A Block for calls in the template's convention, which also reads calls in the other conventions."""
    chosen = convention_of(template)
    more = [convention.block for convention in CONVENTIONS if convention is not chosen]
    return replace(chosen.block, others=(*chosen.block.others, *more))


def _is_token(template: Template, mark: str) -> bool:
    ids = template.encode(mark)
    return len(ids) == 1 and ids[0] in template.added_ids
