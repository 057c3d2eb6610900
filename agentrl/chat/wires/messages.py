"""Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, ChatRequest, Entry, RefusalKind, RefusedError, Reply, ReplyUsage, Role
from agentrl.chat.wires import fields, forcing, reading, wishes
from agentrl.chat.wires.base import DEFAULTS, ReplyWriter, compact, event
from agentrl.chat.wires.reading import refuse
from agentrl.chat.wires.relaxed import relaxed
from agentrl.image import Image, Part
from agentrl.types import JSON, ToolSpec

_ROLES = ("user", "assistant", "system")
_BILLING = "x-anthropic-billing-header"
"""The beginning of Claude Code's first system text, which changes within a session, and is not for the model."""
_HOSTED = re.compile("(web_search|web_fetch|code_execution|tool_search_tool|advisor)_|mcp_toolset$")
_UNREADABLE = "INVALID_JSON"
"""The vendor's key for the text of a call, if the text is no JSON object."""
_STOPS = {"end": "end_turn", "calls": "tool_use", "length": "max_tokens", "stop_sequence": "stop_sequence"}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


class Messages:
    """The API format of `/v1/messages`."""

    def read(
        self, body: Mapping[str, JSON], headers: Mapping[str, str], digest: str, options: SessionOptions = DEFAULTS
    ) -> ReplyWriter:
        body, changed = relaxed(body, options)
        recorded = fields.recorded(body, fields.MESSAGES)
        system = list(_system(body.get("system")))
        sent = reading.sequence(body.get("messages"), "messages")
        entries = [entry for index, message in enumerate(sent) for entry in _message(message, f"messages[{index}]")]
        if not entries:
            raise refuse("messages: at least one message is needed")
        tools, deferred, left_out = _tools(body.get("tools"))
        choice = body.get("tool_choice")
        texts = [text for text in system if not text.startswith(_BILLING)]
        request = ChatRequest(
            wire="messages",
            entries=(*(reading.blocks("system", texts) if texts else ()), *entries),
            tools=forcing.callable_tools(choice, tools),
            deferred=deferred if forcing.callable_tools(choice, [*deferred.values()]) else {},
            forced=forcing.forced(body, tools, options),
            stream=body.get("stream") is True,
            max_tokens=reading.bound(body.get("max_tokens"), "max_tokens"),
            stop=(*reading.strings(body.get("stop_sequences"), "stop_sequences"), *wishes.stop(body)),
            model=reading.string(body.get("model"), "model"),
            recorded=recorded | wishes.left_out(left_out) | changed,
            branch=_branch(system, headers),
            digest=digest,
            continued=wishes.continues(body, entries, marked=wishes.is_open(entries)),
            **wishes.common(body, headers, effort=_effort(body)),
        )
        return _MessageWriter(request)

    def error(self, status: int, message: str, kind: RefusalKind | None = None) -> JSON:
        return _error(_error_type(status, kind), message)


def _error_type(status: int, kind: RefusalKind | None) -> str:
    if kind == "overloaded":
        return "overloaded_error"
    return _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")


def _error(kind: str, message: str) -> JSON:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _effort(body: Mapping[str, JSON]) -> JSON:
    """How much the model should think, in OpenAI's words."""
    thinking, output = body.get("thinking"), body.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return "none"
    return output.get("effort") if isinstance(output, dict) else None


def _branch(system: Sequence[str], headers: Mapping[str, str]) -> str:
    if headers.get("x-parent-session-id"):
        return headers.get("x-session-id") or "sub-agent"
    if headers.get("x-claude-code-agent-id"):
        return headers["x-claude-code-agent-id"]
    return "sub-agent" if any(text.startswith(_BILLING) and "cc_is_subagent=true" in text for text in system) else ""


def _system(content: JSON) -> Iterator[str]:
    yield from reading.texts(content, "system") if content else ()


def _message(message: JSON, where: str) -> list[Entry]:
    message = reading.mapping(message, where)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise refuse(f"{where}.role must be one of {', '.join(_ROLES)}, not {role!r:.80}")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    parts = reading.sequence(content, f"{where}.content")
    located = [(part, f"{where}.content[{index}]") for index, part in enumerate(parts)]
    if role == "assistant":
        return [_assistant((reading.mapping(part, place), place) for part, place in located)]
    return reading.joined([_block(cast(Role, role), *item) for item in located] or [Entry(cast(Role, role))])


def _assistant(parts: Iterable[tuple[Mapping[str, JSON], str]]) -> Entry:
    texts: list[str] = []
    thoughts: list[str] = []
    receipts: list[str | None] = []
    calls: list[Call] = []
    for part, where in parts:
        match part.get("type"):
            case "thinking":
                thoughts.append(reading.string(part.get("thinking"), f"{where}.thinking"))
                receipts.append(reading.string(part.get("signature"), f"{where}.signature"))
            case "redacted_thinking":
                receipts.append(reading.string(part.get("data"), f"{where}.data"))
            case "tool_use":
                calls.append(_call(part, where))
                receipts.append(calls[-1].id)
            case _:
                texts.append(reading.part_text(part, where))
    reasoning = "".join(thoughts) if thoughts else None
    return Entry("assistant", "".join(texts), reasoning, tuple(calls), reading.unique(receipts))


def _call(part: Mapping[str, JSON], where: str) -> Call:
    name, arguments = reading.string(part.get("name"), f"{where}.name"), part.get("input")
    if isinstance(arguments, dict) and list(arguments) == [_UNREADABLE]:
        arguments = arguments[_UNREADABLE]
    return Call(reading.string(part.get("id"), f"{where}.id"), name, reading.arguments(arguments))


def _block(role: Role, part: JSON, where: str) -> Entry:
    if isinstance(part, Image):
        return Entry.of(role, [part] if role == "user" else [reading.part_text(part, where)])
    part = reading.mapping(part, where)
    match part.get("type"):
        case "tool_result":
            return _result(part, where)
        case "document":
            return Entry(role, _document(part, where))
        case _:
            return Entry(role, reading.part_text(part, where))


def _document(part: Mapping[str, JSON], where: str) -> str:
    source = reading.mapping(part.get("source"), f"{where}.source")
    if source.get("type") != "text":
        raise reading.foreign("document", where)
    return reading.string(source.get("data"), f"{where}.source.data")


def _result(part: Mapping[str, JSON], where: str) -> Entry:
    call_id, content = reading.string(part.get("tool_use_id"), f"{where}.tool_use_id"), part.get("content")
    parts, loads = list[Part](), list[str]()
    content = [content] if isinstance(content, str) else content
    for index, item in enumerate(reading.sequence(content, f"{where}.content")):
        place = f"{where}.content[{index}]"
        if isinstance(item, dict) and item.get("type") == "tool_reference":
            loads.append(reading.string(item.get("tool_name"), f"{place}.tool_name"))
        else:
            parts.append(item if isinstance(item, Image) else reading.part_text(item, place))
    if part.get("is_error") is True:
        parts = reading.failed(parts)
    return Entry.of("tool", parts, call_id=call_id, loads=tuple(loads))


def _tools(sent: JSON) -> tuple[list[ToolSpec], dict[str, ToolSpec], list[str]]:
    """The tools at the start of the prompt, the deferred tools, and the names of omitted tools."""
    tools: list[ToolSpec] = []
    deferred: dict[str, ToolSpec] = {}
    left_out: list[str] = []
    for index, tool in enumerate(reading.sequence(sent, "tools")):
        where = f"tools[{index}]"
        tool = reading.mapping(tool, where)
        kind = tool.get("type") or "custom"
        if isinstance(kind, str) and _HOSTED.match(kind):
            left_out.append(kind)
            continue
        if kind != "custom":
            raise refuse(f"{where}: the type {kind!r} is Anthropic's own; declare the tool with its input_schema")
        spec = reading.function(tool.get("name"), tool.get("description"), tool.get("input_schema"), where)
        if tool.get("defer_loading") is True:
            deferred[spec["function"]["name"]] = spec
        else:
            tools.append(spec)
    return tools, deferred, left_out


@dataclass(frozen=True, slots=True)
class _MessageWriter:
    request: ChatRequest

    def whole(self, replies: Sequence[Reply]) -> JSON:
        (reply,) = replies
        return self._message(reply, _content(reply), _STOPS[reply.stop])

    def _message(self, reply: Reply, content: Sequence[JSON], stop: str | None) -> JSON:
        return {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": reply.stop_sequence if stop else None,
            "usage": _usage(reply.usage, reply.usage.sampled if stop else 0),
        }

    def opening(self) -> bytes:
        return _PING

    def progress(self) -> bytes:
        return _PING

    def closing(self, replies: Sequence[Reply]) -> tuple[bytes, bytes]:
        (reply,) = replies
        start = event("message_start", {"type": "message_start", "message": self._message(reply, [], None)})
        body = b"".join(_block_events(index, block) for index, block in enumerate(_content(reply)))
        delta = {"stop_reason": _STOPS[reply.stop], "stop_sequence": reply.stop_sequence}
        usage = _usage(reply.usage, reply.usage.sampled)
        end = event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
        return start + body, end + event("message_stop", {"type": "message_stop"})

    def failure(self, refused: RefusedError) -> bytes:
        return event("error", _error(_error_type(refused.status, refused.kind), str(refused)))


_PING = event("ping", {"type": "ping"})


def _usage(usage: ReplyUsage, sampled: int) -> JSON:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": sampled,
    }


def _content(reply: Reply) -> list[dict[str, JSON]]:
    blocks: list[dict[str, JSON]] = []
    if reply.reasoning is not None and not reply.without_reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": reply.receipt})
    if reply.content:
        blocks.append({"type": "text", "text": reply.content})
    blocks.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)} for call in reply.calls
    )
    return blocks


def _input(arguments: Mapping[str, JSON] | str) -> dict[str, JSON]:
    """The `input` of a call, which must be an object in this API."""
    return {_UNREADABLE: arguments} if isinstance(arguments, str) else dict(arguments)


def _block_events(index: int, block: Mapping[str, JSON]) -> bytes:
    deltas: list[JSON]
    match block["type"]:
        case "thinking":
            emptied = {**block, "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "text":
            emptied, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case _:
            emptied = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": compact(block["input"])}]
    start = event("content_block_start", {"type": "content_block_start", "index": index, "content_block": emptied})
    body = b"".join(
        event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
        for delta in deltas
    )
    return start + body + event("content_block_stop", {"type": "content_block_stop", "index": index})
