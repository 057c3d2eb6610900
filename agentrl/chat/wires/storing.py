"""OpenAI's Responses API: requests that refer to earlier content by id instead of repeating the content."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from agentrl.chat.wires import reading
from agentrl.chat.wires.reading import refuse
from agentrl.types import JSON

_KINDS = {"rs": "reasoning", "msg": "message", "fc": "function_call", "ctc": "custom_tool_call"}


def names_in(body: Mapping[str, JSON]) -> dict[str, Any]:
    """The fields of a ChatRequest that refer to earlier turns. Raises RefusedError if the body names both a response
    and a conversation."""
    previous = reading.string(body.get("previous_response_id"), "previous_response_id")
    value = body.get("conversation")
    conversation = reading.string(value.get("id") if isinstance(value, Mapping) else value, "conversation")
    if previous and conversation:
        raise refuse("previous_response_id and conversation name two histories; send one of them")
    return {
        "previous": previous,
        "conversation": conversation,
        "instructed": bool(body.get("instructions")),
        "response_id": f"resp_{uuid4().hex}",
    }


def referred(item: Mapping[str, JSON], where: str) -> tuple[str, str]:
    """The type and the id of the item to which an `item_reference` refers. Raises RefusedError for an id of another
    form."""
    name = reading.string(item.get("id"), f"{where}.id")
    kind = _KINDS.get(re.split("_", name, maxsplit=1)[0])
    if kind is None:
        raise refuse(f"{where}: no item of this session is named {name!r:.80}; send the item itself")
    return kind, name


def conversation_of(body: Mapping[str, JSON]) -> JSON:
    """The response for a new conversation. Raises RefusedError if the request brings items."""
    if body.get("items"):
        raise refuse("items: a conversation begins empty here; send them as the input of its first response")
    metadata = reading.mapping(body.get("metadata") or {}, "metadata")
    created = int(time.time())
    return {"id": f"conv_{uuid4().hex}", "object": "conversation", "created_at": created, "metadata": dict(metadata)}
