"""Compare the entries of two requests, or a reply and its echo.

An echo is a client's copy of a reply in a later request. Clients may change spaces or the order of keys, fill in
defaults, or leave thoughts out. So digests of a normal form are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Literal, TypeAlias

from agentrl.chat.request import Call, Entry
from agentrl.image import Part
from agentrl.types import JSON, ToolSpec

Digest: TypeAlias = bytes
Telling: TypeAlias = Literal["verbatim", "spelling", "meaning"]
"""The difference between an echo and its reply. verbatim: no difference. spelling: only spaces, thoughts or added
arguments. meaning: different words or calls."""

START: Digest = b""
"""The digest of an empty sequence of entries."""

_SIZE = 16
_OPEN, _CLOSE = "<think>", "</think>"


def digest_of(*parts: str) -> Digest:
    """A digest of a sequence of texts. Lengths are included, so that the boundaries between the texts count."""
    whole = "".join([f"{len(part)}:{part}" for part in parts])
    return blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()


def chained(before: Digest, entry: Digest) -> Digest:
    """The digest of a sequence of entries, from the digest of all entries but the last (`before`) and of the last
    entry."""
    return blake2b(before + entry, digest_size=_SIZE).digest()


def tools_digest(tools: Sequence[ToolSpec]) -> Digest:
    return digest_of(canonical(list(tools))) if tools else START


def head_digest(tools: Digest, template_kwargs: Mapping[str, JSON]) -> Digest:
    """The digest of tools and of arguments for the chat template."""
    return digest_of(tools.hex(), canonical(dict(template_kwargs))) if template_kwargs else tools


def entry_digest(entry: Entry) -> Digest:
    """The digest of an entry's normal form. Ids, outer spaces and thoughts make no difference. Images are compared by
    their content."""
    if entry.role == "assistant":
        return content_digest(entry.text, entry.calls)
    if entry.parts:
        return digest_of(f"{entry.role} with images", *map(_part_form, entry.parts), *entry.loads)
    return digest_of(entry.role, entry.text.strip(), *entry.loads)


def _part_form(part: Part) -> str:
    return f"text {part.strip()}" if isinstance(part, str) else f"image {part.digest}"


def content_digest(text: str, calls: Iterable[Call]) -> Digest:
    """The digest of an assistant's text and calls. Arguments are compared as JSON values."""
    return digest_of("assistant", thoughtless(text), *(f"{call.name} {canonical(call.arguments)}" for call in calls))


def thoughtless(text: str) -> str:
    """The text without a thought at its start, and without outer spaces."""
    text = text.strip()
    if text.startswith(_OPEN):
        _, closed, answer = text.partition(_CLOSE)
        return answer.strip() if closed else text
    return text


def canonical(value: JSON) -> str:
    """JSON text in a normal form: equal values give equal texts. A string is returned unchanged."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def telling(sent: Entry, echo: Entry) -> Telling:
    """The difference between the reply `sent` and its echo. Ids make no difference."""
    calls = [_call_telling(mine, theirs) for mine, theirs in zip(sent.calls, echo.calls, strict=False)]
    if len(sent.calls) != len(echo.calls) or "meaning" in calls or thoughtless(sent.text) != thoughtless(echo.text):
        return "meaning"
    same = sent.text == echo.text and (sent.reasoning or "") == (echo.reasoning or "") and "spelling" not in calls
    return "verbatim" if same else "spelling"


def _call_telling(sent: Call, echo: Call) -> Telling:
    if sent.name != echo.name:
        return "meaning"
    if canonical(sent.arguments) == canonical(echo.arguments):
        return "verbatim"
    return "spelling" if _within(sent.arguments, echo.arguments) else "meaning"


def _within(sent: Mapping[str, JSON] | str, echo: Mapping[str, JSON] | str) -> bool:
    """Whether the echo has all sent arguments unchanged. A client may add default values."""
    if isinstance(sent, str) or isinstance(echo, str) or not sent:
        return False
    return all(name in echo and canonical([echo[name]]) == canonical([value]) for name, value in sent.items())


def words(entry: Entry) -> Digest:
    """Like `entry_digest`, but without any spaces in the text, for a message that a client has joined from several
    replies."""
    return content_digest("".join(entry.text.split()), entry.calls)


def missing(sent: Entry, echo: Entry) -> Entry | None:
    """The missing part of the reply `sent`, if the client echoes only the thoughts, or only the thoughts and the text.
    Otherwise None."""
    if echo.calls or (echo.text.strip() and thoughtless(echo.text) != thoughtless(sent.text)):
        return None
    text = "" if echo.text.strip() else sent.text
    return replace(sent, text=text, reasoning=None) if text or sent.calls else None
