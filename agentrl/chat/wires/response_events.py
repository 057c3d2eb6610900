"""OpenAI's Responses API: writes responses, as a single body or as events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from uuid import uuid4

from agentrl.chat.request import ChatRequest, RefusedError, Reply, ReplyCall, ReplyUsage
from agentrl.chat.wires.base import arguments_text, event
from agentrl.chat.wires.openai_errors import full, stream_code
from agentrl.types import JSON

_ECHOED: Mapping[str, JSON] = {
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "top_p": None,
}
"""Parameters that the response repeats -> their defaults. Tools and instructions are left out, because each event would
repeat these long texts."""


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The form of a tool's calls in a response."""

    name: str
    namespace: str | None = None
    custom: bool = False
    """Whether the tool is a custom tool, whose argument is plain text."""


@dataclass(slots=True)
class ResponseWriter:
    """Writes the response to one request."""

    request: ChatRequest
    forms: Mapping[str, ToolForm]
    body: Mapping[str, JSON]
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    numbers: Iterator[int] = field(default_factory=count)

    def whole(self, replies: Sequence[Reply]) -> JSON:
        (reply,) = replies
        return self._finished(reply, self._items(reply))

    def _finished(self, reply: Reply, items: Sequence[JSON]) -> JSON:
        cut = reply.stop == "length"
        return self._response("incomplete" if cut else "completed") | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items,
            "usage": _usage(reply.usage),
        }

    def _response(self, status: str) -> dict[str, JSON]:
        echoed = {
            name: default if self.body.get(name) is None else self.body[name] for name, default in _ECHOED.items()
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.request.model,
            "instructions": None,
            "tools": [],
            "output": [],
            "previous_response_id": self.request.previous or None,
            **({"conversation": {"id": self.request.conversation}} if self.request.conversation else {}),
            "store": False,
            "usage": None,
            **echoed,
        }

    def opening(self) -> bytes:
        return self._event("response.created", response=self._response("in_progress")) + self.progress()

    def progress(self) -> bytes:
        return self._event("response.in_progress", response=self._response("in_progress"))

    def closing(self, replies: Sequence[Reply]) -> tuple[bytes, bytes]:
        (reply,) = replies
        items = self._items(reply)
        body = b"".join(self._item_events(index, item) for index, item in enumerate(items))
        finished = self._finished(reply, items)
        return body, self._event(f"response.{finished['status']}", response=finished)

    def failure(self, refused: RefusedError) -> bytes:
        message = full(str(refused)) if refused.kind == "context_full" else str(refused)
        error = {"code": stream_code(refused.kind), "message": message}
        return self._event("response.failed", response=self._response("failed") | {"error": error})

    def _event(self, name: str, /, **data: JSON) -> bytes:
        return event(name, {"type": name, "sequence_number": next(self.numbers), **data})

    def _items(self, reply: Reply) -> list[dict[str, JSON]]:
        status = "incomplete" if reply.stop == "length" else "completed"
        items: list[dict[str, JSON]] = []
        if reply.reasoning is not None and not reply.without_reasoning:
            items.append(_reasoning(reply))
        if reply.content or not reply.calls:
            items.append(_message(reply, status))
        items.extend(self._call(call, status) for call in reply.calls)
        return items

    def _call(self, call: ReplyCall, status: str) -> dict[str, JSON]:
        form = self.forms.get(call.name) or ToolForm(call.name)
        named = {"call_id": call.id, "name": form.name, "status": status}
        if form.namespace is not None:
            named["namespace"] = form.namespace
        if form.custom:
            return {"type": "custom_tool_call", "id": f"ctc_{call.id}", "input": _plain_input(call), **named}
        arguments = arguments_text(call.arguments)
        return {"type": "function_call", "id": f"fc_{call.id}", "arguments": arguments, **named}

    def _item_events(self, index: int, item: Mapping[str, JSON]) -> bytes:
        kind = item["type"]
        emptied: dict[str, JSON] = {"summary": []} if kind == "reasoning" else {"status": "in_progress"}
        if kind != "reasoning":
            emptied |= {key: type(item[key])() for key in ("content", "arguments", "input") if key in item}
        added = self._event("response.output_item.added", output_index=index, item={**item, **emptied})
        inner = b"".join(
            self._event(f"response.{name}", output_index=index, **data) for name, data in _inner_events(item)
        )
        return added + inner + self._event("response.output_item.done", output_index=index, item=item)


def _inner_events(item: Mapping[str, JSON]) -> Iterator[tuple[str, dict[str, JSON]]]:
    """The events inside an output item: pairs of name and data."""
    ids = {"item_id": item["id"]}
    match item["type"]:
        case "reasoning":
            yield from _parts(ids, item["summary"], "summary_index", "reasoning_summary_part", "reasoning_summary_text")
        case "message":
            yield from _parts(ids, item["content"], "content_index", "content_part", "output_text")
        case "function_call":
            yield "function_call_arguments.delta", {**ids, "delta": item["arguments"]}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield "function_call_arguments.done", {**ids, **done}
        case _:
            yield "custom_tool_call_input.delta", {**ids, "delta": item["input"]}
            yield "custom_tool_call_input.done", {**ids, "input": item["input"]}


def _parts(
    ids: Mapping[str, JSON], parts: Sequence[JSON], index: str, part_name: str, text_name: str
) -> Iterator[tuple[str, dict[str, JSON]]]:
    extra: dict[str, JSON] = {"logprobs": []} if text_name == "output_text" else {}
    for number, part in enumerate(parts):
        here = {**ids, index: number}
        yield f"{part_name}.added", {**here, "part": {**part, "text": ""}}
        yield f"{text_name}.delta", {**here, **extra, "delta": part["text"]}
        yield f"{text_name}.done", {**here, **extra, "text": part["text"]}
        yield f"{part_name}.done", {**here, "part": part}


def _reasoning(reply: Reply) -> dict[str, JSON]:
    """The item for a reply's thoughts. The thoughts are in the summary, which every client keeps."""
    summary = [{"type": "summary_text", "text": reply.reasoning}]
    return {
        "type": "reasoning",
        "id": f"rs_{reply.id}",
        "summary": summary,
        "encrypted_content": reply.receipt,
    }


def _message(reply: Reply, status: str) -> dict[str, JSON]:
    part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
    return {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": status, "content": [part]}


def _plain_input(call: ReplyCall) -> str:
    text = call.arguments if isinstance(call.arguments, str) else call.arguments.get("input")
    return text if isinstance(text, str) else arguments_text(call.arguments)


def _usage(usage: ReplyUsage) -> JSON:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.sampled,
    }
