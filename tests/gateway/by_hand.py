"""Small clients of the three wires, without a vendor's SDK: a history becomes a body, and an answer a reply."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Said:
    """A reply as the client keeps it. It may tell it in other words later."""

    text: str
    calls: list[tuple[str, str, dict[str, Any]]]
    id: str = ""
    mark: str = ""


@dataclass
class Results:
    """The answers to a reply's calls."""

    texts: dict[str, str]


MAIN_SYSTEM = "You are a careful engineer. Work in small steps."

Item = str | Said | Results
"""A text is the user's."""


@dataclass(frozen=True)
class Talk:
    """One request's conversation."""

    items: list[Item]
    system: str = MAIN_SYSTEM
    tools: tuple[str, ...] = ("find", "edit")
    headers: dict[str, str] = field(default_factory=dict)


def _schema(name: str) -> dict[str, Any]:
    properties = {"what": {"type": "string"}, "deep": {"type": "boolean"}}
    return {"type": "object", "properties": properties, "description": f"What to {name}."}


class Messages:
    path = "/v1/messages"

    def body(self, talk: Talk) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        for item in talk.items:
            role = "assistant" if isinstance(item, Said) else "user"
            if not messages or messages[-1]["role"] != role:
                messages.append({"role": role, "content": []})
            messages[-1]["content"] += self._blocks(item)
        tools = [{"name": name, "description": name, "input_schema": _schema(name)} for name in talk.tools]
        body = {"model": "m", "max_tokens": 4096, "system": talk.system, "messages": messages}
        return {**body, "tools": tools} if tools else body

    def _blocks(self, item: Item) -> list[dict[str, Any]]:
        if isinstance(item, str):
            return [{"type": "text", "text": item}]
        if isinstance(item, Results):
            return [{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in item.texts.items()]
        text = [{"type": "text", "text": item.text}] if item.text else []
        return [*text, *({"type": "tool_use", "id": one, "name": n, "input": given} for one, n, given in item.calls)]

    def said(self, told: dict[str, Any]) -> Said:
        text = "".join(block["text"] for block in told["content"] if block["type"] == "text")
        uses = [block for block in told["content"] if block["type"] == "tool_use"]
        return Said(text, [(use["id"], use["name"], use["input"]) for use in uses], told["id"])


class Chat:
    path = "/v1/chat/completions"

    def body(self, talk: Talk) -> dict[str, Any]:
        messages = [{"role": "system", "content": talk.system}]
        for item in talk.items:
            messages += self._messages(item)
        functions = [{"name": name, "description": name, "parameters": _schema(name)} for name in talk.tools]
        tools = [{"type": "function", "function": function} for function in functions]
        return {"model": "m", "messages": messages, **({"tools": tools} if tools else {})}

    def _messages(self, item: Item) -> list[dict[str, Any]]:
        if isinstance(item, str):
            return [{"role": "user", "content": item}]
        if isinstance(item, Results):
            return [{"role": "tool", "tool_call_id": one, "content": text} for one, text in item.texts.items()]
        functions = [(one, {"name": name, "arguments": json.dumps(given)}) for one, name, given in item.calls]
        calls = [{"id": one, "type": "function", "function": function} for one, function in functions]
        return [{"role": "assistant", "content": item.text or None, **({"tool_calls": calls} if calls else {})}]

    def said(self, told: dict[str, Any]) -> Said:
        message = told["choices"][0]["message"]
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
        given = [(one, function["name"], json.loads(function["arguments"])) for one, function in calls]
        return Said(message["content"] or "", given)


class Responses:
    path = "/v1/responses"

    def __init__(self, *, keeps_ids: bool) -> None:
        self.keeps_ids = keeps_ids

    def body(self, talk: Talk) -> dict[str, Any]:
        items = [made for item in talk.items for made in self._items(item)]
        tools = [{"type": "function", "name": name, "parameters": _schema(name)} for name in talk.tools]
        body = {"model": "m", "store": False, "instructions": talk.system, "input": items}
        return {**body, "tools": tools} if tools else body

    def _items(self, item: Item) -> list[dict[str, Any]]:
        if isinstance(item, str):
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": item}]}]
        if isinstance(item, Results):
            outputs = item.texts.items()
            return [{"type": "function_call_output", "call_id": one, "output": text} for one, text in outputs]
        content = [{"type": "output_text", "text": item.text, "annotations": []}]
        message = {"type": "message", "role": "assistant", "content": content}
        texts = [message | ({"id": item.id} if self.keeps_ids else {})] if item.text else []
        made = [{"call_id": one, "name": name, "arguments": json.dumps(given)} for one, name, given in item.calls]
        return [*texts, *({"type": "function_call", **call} for call in made)]

    def said(self, told: dict[str, Any]) -> Said:
        output = told["output"]
        texts = [item for item in output if item["type"] == "message"]
        calls = [item for item in output if item["type"] == "function_call"]
        text = "".join(part["text"] for item in texts for part in item["content"])
        given = [(call["call_id"], call["name"], json.loads(call["arguments"])) for call in calls]
        return Said(text, given, texts[0]["id"] if texts else "")
