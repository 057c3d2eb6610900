"""Messages to probe a template: their words (sentinels) are searched for in the rendered text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.types import Message, ToolCall

SAID, ASKED, THOUGHT = "zqsaid", "zqasked", "zqthought"
"""Sentinels for content, questions and thoughts: plain words survive trimming and quoting."""

TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look up."}},
            "required": ["query"],
        },
    },
}
QUESTION: Message = {"role": "user", "content": "question"}
REPLY: Message = {"role": "user", "content": "reply"}
RESULT: Message = {"role": "tool", "tool_call_id": "call00000", "name": "lookup", "content": "result"}


def assistant(content: str, arguments: Sequence[str] = (), calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """An assistant message. The n-th call has `arguments[n]`, and the id and name of `calls[n]` if `calls` is not
    empty."""
    identities = calls or [ToolCall(f"call0000{i}", "lookup", {}) for i in range(len(arguments))]
    tool_calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name or "unknown", "arguments": {"query": value}},
        }
        for call, value in zip(identities, arguments, strict=True)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return {**message, "tool_calls": tool_calls} if tool_calls else message


def behind_question(text: str) -> str:
    """The part of a rendered text after QUESTION."""
    return text.rpartition(QUESTION["content"])[2]
