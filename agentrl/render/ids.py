"""Convert ids of calls to a template's form: most templates take any text, some need nine letters and digits, some the
tool's name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentrl.types import Message

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def named_id(name: str, number: int) -> str:
    """An id made of the tool's name and the call's number, as in Kimi's models: `functions.search:3`."""
    return f"functions.{name}:{number}"


def has_name(call_id: str, name: str) -> bool:
    """Whether an id contains the tool's name and a number."""
    return bool(name) and re.fullmatch(rf"(?:[\w-]+\.)?{re.escape(name)}:\d+", call_id) is not None


def next_number(ids: Iterable[str]) -> int:
    """The number for the next call after the calls with these ids, which contain numbers."""
    return max((int(call_id.rpartition(":")[2]) for call_id in ids), default=-1) + 1


def with_named_ids(messages: Sequence[Message], number: int = 0) -> list[Message]:
    """The messages with ids made by `named_id`, for templates that write an id in place of a name.

    An id that contains its tool's name is kept. All other calls are numbered through the whole conversation, as in
    Kimi's models, from `number` on.
    """

    def named(call_id: str, name: str) -> str:
        nonlocal number
        new_id = call_id if has_name(call_id, name) else named_id(name, number)
        number = max(number + 1, next_number([new_id]))
        return new_id

    return _renamed(messages, named)


def with_plain_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages with ids of nine letters and digits, for templates that refuse other ids."""
    return _renamed(messages, lambda call_id, _: plain_id(call_id), orphans=True)


def _renamed(messages: Sequence[Message], rename: Callable[[str, str], str], *, orphans: bool = False) -> list[Message]:
    """The messages with ids changed by `rename`. A result gets the new id of the last earlier call with the same old
    id.

    With `orphans`, the id of a result without a call is changed, too.
    """
    ids, renamed = dict[str, str](), list[Message]()
    for message in messages:
        changed: dict[str, Any] = dict(message)
        answered = message.get("tool_call_id")
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                call_id = call.get("id") or ""
                ids[call_id] = rename(call_id, (call.get("function") or call)["name"])
                calls.append({**call, "id": ids[call_id]})
            changed["tool_calls"] = calls
        elif answered in ids:
            changed["tool_call_id"] = ids[answered]
        elif answered and orphans:
            changed["tool_call_id"] = rename(answered, "")
        renamed.append(changed)
    return renamed


def plain_id(call_id: str) -> str:
    """The plain form of an id: nine letters and digits, which every template accepts. Another id is replaced by a hash
    in this form."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.blake2s(call_id.encode("utf-8", "replace"), digest_size=8).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)
