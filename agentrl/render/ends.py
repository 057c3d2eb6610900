"""The tokens that end a turn under a chat template."""

from __future__ import annotations

from contextlib import suppress

from agentrl.errors import TemplateError
from agentrl.render.base import Renderer
from agentrl.render.learn.probe import TOOL
from agentrl.types import Message

_CALL = {"id": "c00000000", "type": "function", "function": {"name": "lookup", "arguments": {}}}
"""A call of the tool TOOL, to probe the end of a turn with calls."""


def turn_ends(renderer: Renderer) -> frozenset[int]:
    """The ids of the tokens that end a turn without calls and a turn with calls. Empty if both end with plain text."""
    answer: Message = {"role": "assistant", "content": "Yes."}
    tokens = [renderer.encode(answer)]
    with suppress(TemplateError):  # a template without calls
        tokens.append(renderer.bind((TOOL,)).encode({**answer, "content": "", "tool_calls": [_CALL]}))
    return renderer.stop_token_ids.intersection(turn[-1] for turn in tokens if turn)
