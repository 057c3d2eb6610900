"""How models spell calls whose templates write none. The template's text or the vocabulary shows which one a model has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.render.formats.json_calls import JsonCalls, in_a_list
from agentrl.render.formats.kwargs import AsKwargs
from agentrl.render.formats.named_calls import NamedCalls
from agentrl.render.read.calls import Block
from agentrl.render.template import Template

Functions = Sequence[Mapping[str, Any]]
"""Each with a name and arguments."""


@dataclass(frozen=True, slots=True)
class Convention:
    """`mark` gives its calls away, `example` shows one."""

    mark: str
    example: str
    block: Block
    write: Callable[[Functions], str]


def _tagged(functions: Functions) -> str:
    return "\n".join(f"<tool_call>\n{_object(function)}\n</tool_call>" for function in functions)


def _pythonic(functions: Functions) -> str:
    return f"<|tool_call_start|>[{', '.join(map(_python, functions))}]<|tool_call_end|>"


def _listed(functions: Functions) -> str:
    return f"<|tool_call|>[{', '.join(map(_object, functions))}]"


def _object(function: Mapping[str, Any]) -> str:
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


def _python(function: Mapping[str, Any]) -> str:
    given = (
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)}"
        for key, value in function["arguments"].items()
    )
    return f"{function['name']}({', '.join(given)})"


_TAGS = JsonCalls("<tool_call>", "</tool_call>")
_LFM = JsonCalls("<|tool_call_start|>", "<|tool_call_end|>")
TAGGED = Convention(
    "<tool_call>",
    "<tool_call>{json}</tool_call>",
    Block(_TAGS, others=(in_a_list(_TAGS),)),
    _tagged,
)
"""The most widely trained one: Hermes, Qwen."""
PYTHONIC = Convention(
    "<|tool_call_start|>",
    '<|tool_call_start|>[name(key="value")]<|tool_call_end|>',
    Block(
        NamedCalls("", "(", ")", AsKwargs()),
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        others=(in_a_list(_LFM),),
    ),
    _pythonic,
)
"""LFM2's."""
LISTED = Convention("<|tool_call|>", "<|tool_call|>[{json}]", in_a_list(JsonCalls("<|tool_call|>", "")), _listed)
"""Granite 3's."""
CONVENTIONS = (TAGGED, PYTHONIC, LISTED)


def convention_of(template: Template) -> Convention:
    """The first whose mark the template's text has, else the first whose mark is a token; else the most common one."""
    shown = [convention for convention in CONVENTIONS if convention.mark in template.source]
    known = [convention for convention in CONVENTIONS if _is_token(template, convention.mark)]
    return next(iter((*shown, *known)), TAGGED)


def conventional(template: Template) -> Block:
    """Calls by the template's convention; those of the others are read too."""
    own = convention_of(template)
    more = [convention.block for convention in CONVENTIONS if convention is not own]
    return replace(own.block, others=(*own.block.others, *more))


def _is_token(template: Template, mark: str) -> bool:
    ids = template.encode(mark)
    return len(ids) == 1 and ids[0] in template.added_ids
