"""OpenAI's Chat Completions API."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from uuid import uuid4

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, ChatRequest, Entry, RefusalKind, RefusedError, Reply, Role
from agentrl.chat.wires import fields, forcing, reading, wishes
from agentrl.chat.wires.base import DEFAULTS, ReplyWriter, arguments_text, compact
from agentrl.chat.wires.openai_errors import error_body
from agentrl.chat.wires.reading import refuse
from agentrl.chat.wires.relaxed import relaxed
from agentrl.types import JSON, ToolSpec

_ROLES = ("system", "developer", "user", "assistant", "tool")
_STOPS = {"end": "stop", "calls": "tool_calls", "length": "length", "stop_sequence": "stop"}


class Chat:
    """The API format of `/v1/chat/completions`."""

    def read(
        self, body: Mapping[str, JSON], headers: Mapping[str, str], digest: str, options: SessionOptions = DEFAULTS
    ) -> ReplyWriter:
        body, changed = relaxed(body, options)
        recorded = fields.recorded(body, fields.CHAT)
        sent = reading.sequence(body.get("messages"), "messages")
        entries = [entry for index, message in enumerate(sent) for entry in _message(message, f"messages[{index}]")]
        if not entries:
            raise refuse("messages: at least one message is needed")
        tools, left_out = _tools(body.get("tools"))
        most = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
        request = ChatRequest(
            wire="chat",
            entries=tuple(entries),
            tools=forcing.callable_tools(body.get("tool_choice"), tools),
            forced=forcing.forced(body, tools, options),
            stream=body.get("stream") is True,
            n=reading.bound(body.get("n"), "n") or 1,
            max_tokens=reading.bound(body.get(most), most),
            stop=reading.strings(body.get("stop"), "stop"),
            model=reading.string(body.get("model"), "model"),
            recorded=recorded | wishes.left_out(left_out) | changed,
            branch=headers.get("x-session-id", "sub-agent") if headers.get("x-parent-session-id") else "",
            digest=digest,
            continued=wishes.continues(body, entries, marked=_is_prefix(sent[-1])),
            **wishes.common(body, headers, effort=body.get("reasoning_effort")),
        )
        streamed = body.get("stream_options")
        return _CompletionWriter(request, isinstance(streamed, dict) and streamed.get("include_usage") is True)

    def error(self, status: int, message: str, kind: RefusalKind | None = None) -> JSON:
        return error_body(status, message, kind)


def _is_prefix(message: JSON) -> bool:
    """Whether a message has the flag of Mistral's and DeepSeek's APIs that asks the model to continue the message."""
    return isinstance(message, dict) and message.get("prefix") is True


def _message(message: JSON, where: str) -> list[Entry]:
    message = reading.mapping(message, where)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise refuse(f"{where}.role must be one of {', '.join(_ROLES)}, not {role!r:.80}")
    place = f"{where}.content"
    if role == "assistant":
        return [_assistant(message, "".join(reading.texts(content, place)), where)]
    if role == "tool":
        call_id = reading.string(message.get("tool_call_id"), f"{where}.tool_call_id")
        return [Entry.of("tool", reading.parts(content, place), call_id=call_id)]
    read = reading.parts if role == "user" else reading.texts
    return reading.blocks(cast(Role, role), read(content, place))


def _assistant(message: Mapping[str, JSON], text: str, where: str) -> Entry:
    sent = reading.sequence(message.get("tool_calls"), f"{where}.tool_calls")
    calls = tuple(_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(sent))
    reasoning = next((message[name] for name in ("reasoning_content", "reasoning") if message.get(name)), None)
    if reasoning is not None:
        reasoning = reading.string(reasoning, f"{where}.reasoning_content")
    text = text or reading.string(message.get("refusal"), f"{where}.refusal")
    return Entry("assistant", text, reasoning, calls, reading.unique(call.id for call in calls))


def _call(call: JSON, where: str) -> Call:
    call = reading.mapping(call, where)
    if reading.unlike(call.get("type"), "function", ""):
        raise refuse(f"{where}: the type {call['type']!r} is not served; declare the tool as a function")
    function = reading.mapping(call.get("function"), f"{where}.function")
    name = reading.string(function.get("name"), f"{where}.function.name")
    return Call(reading.string(call.get("id"), f"{where}.id"), name, reading.arguments(function.get("arguments")))


def _tools(sent: JSON) -> tuple[list[ToolSpec], list[str]]:
    """The tools of a request, and the types of omitted tools."""
    tools: list[ToolSpec] = []
    left_out: list[str] = []
    for index, tool in enumerate(reading.sequence(sent, "tools")):
        where = f"tools[{index}]"
        tool = reading.mapping(tool, where)
        kind = tool.get("type")
        if kind == "custom":
            raise refuse(f"{where}: custom tools are not served on this API; declare a function, or use /v1/responses")
        if kind != "function":
            left_out.append(reading.left_out(kind, where))
            continue
        declaration = reading.mapping(tool.get("function"), f"{where}.function")
        tools.append(
            reading.function(
                declaration.get("name"),
                declaration.get("description"),
                declaration.get("parameters"),
                f"{where}.function",
            )
        )
    return tools, left_out


@dataclass(frozen=True, slots=True)
class _CompletionWriter:
    request: ChatRequest
    include_usage: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, replies: Sequence[Reply]) -> JSON:
        choices = [
            {"index": index, "message": _message_json(reply), "logprobs": None, "finish_reason": _STOPS[reply.stop]}
            for index, reply in enumerate(replies)
        ]
        return self._head("chat.completion") | {"choices": choices, "usage": _usage(replies)}

    def _head(self, kind: str) -> dict[str, JSON]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}

    def opening(self) -> bytes:
        return b"".join(self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.request.n))

    def progress(self) -> bytes:
        return self._chunk(0, {})

    def closing(self, replies: Sequence[Reply]) -> tuple[bytes, bytes]:
        body = b"".join(self._chunk(index, delta) for index, reply in enumerate(replies) for delta in _deltas(reply))
        end = b"".join(self._chunk(index, {}, _STOPS[reply.stop]) for index, reply in enumerate(replies))
        if self.include_usage:
            end += _data(self._head("chat.completion.chunk") | {"choices": [], "usage": _usage(replies)})
        return body, end + b"data: [DONE]\n\n"

    def _chunk(self, index: int, delta: JSON, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        return _data(chunk | {"usage": None} if self.include_usage else chunk)

    def failure(self, refused: RefusedError) -> bytes:
        return _data(error_body(refused.status, str(refused), refused.kind)) + b"data: [DONE]\n\n"


def _data(data: JSON) -> bytes:
    return f"data: {compact(data)}\n\n".encode()


def _message_json(reply: Reply) -> dict[str, JSON]:
    message: dict[str, JSON] = {"role": "assistant", "content": reply.content or (None if reply.calls else "")}
    if _thinks(reply):
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = _calls(reply)
    return message


def _thinks(reply: Reply) -> bool:
    return reply.reasoning is not None and not reply.without_reasoning


def _calls(reply: Reply) -> list[dict[str, JSON]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
        }
        for call in reply.calls
    ]


def _deltas(reply: Reply) -> list[JSON]:
    deltas: list[JSON] = [{"reasoning_content": reply.reasoning}] if _thinks(reply) else []
    if reply.content:
        deltas.append({"content": reply.content})
    deltas.extend({"tool_calls": [{"index": index, **call}]} for index, call in enumerate(_calls(reply)))
    return deltas


def _usage(replies: Sequence[Reply]) -> JSON:
    """The response's `usage` for all replies to a request. The tokens of their common prompt are counted once."""
    prompt, cached = replies[0].usage.prompt, max(reply.usage.cached for reply in replies)
    sampled = sum(reply.usage.sampled for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
