"""What counts as the same: entries of two requests, and a reply and what its client tells of it.

Clients write the past in their own way: other spaces, other order of keys, defaults filled in, thoughts left out. So
entries are compared in a normal form, by digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Literal, TypeAlias

from agentrl.chat.request import Call, Entry
from agentrl.types import JSON, ToolSpec

Digest: TypeAlias = bytes
Telling: TypeAlias = Literal["verbatim", "spelling", "meaning"]
"""How a client tells a reply: as it was sent, in another spelling of the same, or as something else."""

START: Digest = b""
"""The digest of no entries."""

_SIZE = 16
_OPEN, _CLOSE = "<think>", "</think>"


def digest_of(*parts: str) -> Digest:
    """A digest of texts. Their borders count."""
    whole = "".join([f"{len(part)}:{part}" for part in parts])
    return blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()


def chained(before: Digest, entry: Digest) -> Digest:
    """The digest of a sequence of entries, grown by one."""
    return blake2b(before + entry, digest_size=_SIZE).digest()


def tools_digest(tools: Sequence[ToolSpec]) -> Digest:
    return digest_of(canonical(list(tools))) if tools else START


def entry_digest(entry: Entry) -> Digest:
    """The digest of an entry that is prompt material. Ids, outer spaces and thoughts make no difference."""
    if entry.role == "assistant":
        return lean(entry.text, entry.calls)
    return digest_of(entry.role, entry.text.strip(), *entry.loads)


def lean(text: str, calls: Iterable[Call]) -> Digest:
    """The digest of an assistant's text and calls, as values."""
    return digest_of("assistant", thoughtless(text), *(f"{call.name} {canonical(call.arguments)}" for call in calls))


def thoughtless(text: str) -> str:
    """The text without outer spaces, and without a thought that a client has put before it."""
    text = text.strip()
    if text.startswith(_OPEN):
        _, closed, behind = text.partition(_CLOSE)
        return behind.strip() if closed else text
    return text


def canonical(value: JSON) -> str:
    """JSON in which equal values are equal text. Text that is no JSON stays as it is."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def telling(sent: Entry, told: Entry) -> Telling:
    """How a client tells a reply that was sent to it as `sent`. Ids make no difference."""
    calls = [_call_telling(mine, theirs) for mine, theirs in zip(sent.calls, told.calls, strict=False)]
    if len(sent.calls) != len(told.calls) or "meaning" in calls or thoughtless(sent.text) != thoughtless(told.text):
        return "meaning"
    same = sent.text == told.text and (sent.reasoning or "") == (told.reasoning or "") and "spelling" not in calls
    return "verbatim" if same else "spelling"


def _call_telling(sent: Call, told: Call) -> Telling:
    if sent.name != told.name:
        return "meaning"
    if canonical(sent.arguments) == canonical(told.arguments):
        return "verbatim"
    return "spelling" if _within(sent.arguments, told.arguments) else "meaning"


def _within(sent: Mapping[str, JSON] | str, told: Mapping[str, JSON] | str) -> bool:
    """Whether all that was sent is still there: a client may fill in defaults."""
    if isinstance(sent, str) or isinstance(told, str) or not sent:
        return False
    return all(name in told and canonical([told[name]]) == canonical([value]) for name, value in sent.items())


def missing(sent: Entry, told: Entry) -> Entry | None:
    """What of a reply a client has not got, if it got a beginning only: its thought, or that and the text."""
    if told.calls or (told.text.strip() and thoughtless(told.text) != thoughtless(sent.text)):
        return None
    text = "" if told.text.strip() else sent.text
    return replace(sent, text=text, reasoning=None) if text or sent.calls else None
