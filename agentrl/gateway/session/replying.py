"""Convert a sampled turn to the reply for the client."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, Entry, Forced, Reply, ReplyCall, ReplyUsage
from agentrl.gateway.session.matching import canonical
from agentrl.gateway.session.nodes import Node, spaces_before
from agentrl.types import Action, ToolCall, ToolSpec

_DEFAULTS = SessionOptions()
_NAMELESS = "unreadable_call"
"""Name for a call that names no tool."""


def reply_of(
    node: Node, action: Action, request: ChatRequest, options: SessionOptions = _DEFAULTS
) -> tuple[Reply, dict[str, str]]:
    """The reply for a complete turn, and a mapping: a call's id for the client -> the call's id in the action.

    `SessionOptions.unreadable` decides the form of unreadable calls. In a cut turn unreadable calls are text. A client
    that allows no parallel calls gets only the first call.
    """
    as_calls = options.unreadable == "call" and action.finish_reason != "length"
    calls = [call for call in action.calls if call.error is None or as_calls][: None if request.parallel else 1]
    ids = {f"call_{node.id}_{i}": call.id for i, call in enumerate(calls)}
    ended = bool(calls) and not request.parallel
    unreadable = [] if as_calls or ended else [call.raw for call in action.calls if call.error is not None]
    matched = _matched_stop(action, request)
    content = _content(node, action, None if request.shows_stop else matched)
    turn, prompt = node.turn.turns[-1], node.prompt.length
    return Reply(
        node.id,
        f"r_{node.id}",
        "\n".join(filter(None, [content, *unreadable])),
        action.reasoning,
        tuple(_reply_call(wire, call, node.prompt.head.tools) for wire, call in zip(ids, calls, strict=True)),
        _stop(action, bool(calls), matched),
        matched,
        ReplyUsage(prompt, min(turn.cached_tokens, prompt), turn.sampled_tokens),
        not request.shows_thoughts,
    ), ids


def _matched_stop(action: Action, request: ChatRequest) -> str | None:
    """The request's stop string that ended the turn."""
    return action.matched if isinstance(action.matched, str) and action.matched in request.stop else None


def _content(node: Node, action: Action, hidden_stop: str | None) -> str:
    """The text of a reply, without a stop string that is hidden from the client."""
    content = spaces_before(node.prompt, action) + action.content
    return content if hidden_stop is None else content.removesuffix(hidden_stop.rstrip())


def _stop(action: Action, has_calls: bool, matched: str | None) -> Literal["end", "calls", "length", "stop_sequence"]:
    if action.finish_reason == "length":
        return "length"
    if has_calls:
        return "calls"
    return "stop_sequence" if matched else "end"


def _reply_call(wire: str, call: ToolCall, tools: Sequence[ToolSpec]) -> ReplyCall:
    """A call for the client."""
    if call.error is None:
        return ReplyCall(wire, call.name, call.arguments)
    raw = call.raw.strip() or call.error
    return ReplyCall(wire, call.name or _meant(raw, tools), f"{call.error}: {raw}" if _is_object(raw) else raw)


def _meant(raw: str, tools: Sequence[ToolSpec]) -> str:
    """The first name of a tool that occurs in the text of an unreadable call."""
    names = [(tool.get("function") or tool).get("name", "") for tool in tools]
    places = [(match.start(), name) for name in names if (match := re.search(rf"\b{re.escape(name)}\b", raw))]
    return min(places)[1] if places else _NAMELESS


def _is_object(text: str) -> bool:
    """Whether a client would parse the text as arguments and execute the call."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def disobeyed(reply: Reply, forced: Forced | None) -> str | None:
    """The reason why a complete reply does not have the form that the client demands. None if it does."""
    if forced is None or reply.stop in ("length", "stop_sequence"):
        return None
    if reply.calls:
        unknown = [
            call.name for call in reply.calls if call.name not in forced.names or isinstance(call.arguments, str)
        ]
        return f"the reply calls {unknown[0]!r:.80}" if unknown else None
    if forced.text is not None:
        return None
    if forced.schema is None:
        return "the reply has no call"
    return None if _is_json(reply.content) else "the reply is not JSON"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def entry_text(entry: Entry) -> str:
    """An assistant entry as one text."""
    thought = [] if entry.reasoning is None else [f"<think>{entry.reasoning}</think>"]
    calls = [f"{call.name}({canonical(call.arguments)})" for call in entry.calls]
    return "\n".join([*thought, *([entry.text] if entry.text else []), *calls])
