"""Parts of a request that a session may leave out instead of refusing: images, and forced forms of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.options import SessionOptions
from agentrl.chat.wires import forcing
from agentrl.chat.wires.reading import MEDIA, unlike
from agentrl.types import JSON

_MARK = "[{} omitted: this model reads text only]"
_FORMATS = (("response_format",), ("output_format",), ("output_config", "format"), ("text", "format"))
"""Paths of the fields by which the vendors' APIs demand a format of the answer."""


def relaxed(body: Mapping[str, JSON], options: SessionOptions) -> tuple[Mapping[str, JSON], dict[str, JSON]]:
    """The body without the parts that the options leave out, and a record of these parts for the log."""
    notes: dict[str, JSON] = {}
    if options.images == "omit":
        omitting = _Omitting()
        body = omitting.of(body)
        notes |= {"images_omitted": omitting.count} if omitting.count else {}
    if options.forced == "ignore":
        body, forced = _unforced(body)
        notes |= {"forced_ignored": forced} if forced else {}
    return body, notes


class _Omitting:
    """Replaces each image with a note. Only contents are searched, because a call's arguments may hold anything."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, body: Mapping[str, JSON]) -> Mapping[str, JSON]:
        lists = {name: body[name] for name in ("messages", "input") if isinstance(body.get(name), list)}
        return {**body, **{name: [self._message(message) for message in sent] for name, sent in lists.items()}}

    def _message(self, message: JSON) -> JSON:
        if not isinstance(message, dict):
            return message
        lists = {name: message[name] for name in ("content", "output") if isinstance(message.get(name), list)}
        return {**message, **{name: self._parts(parts) for name, parts in lists.items()}}

    def _parts(self, parts: Sequence[JSON]) -> list[JSON]:
        return [self._part(part) for part in parts]

    def _part(self, part: JSON) -> JSON:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            return part
        if kind == "tool_result":
            return self._message(part)
        match = MEDIA.search(kind)
        if match is None or _is_text(part):
            return part
        self.count += 1
        return {"type": "text", "text": _MARK.format(match[0])}


def _is_text(part: Mapping[str, JSON]) -> bool:
    """Whether a document is plain text."""
    source = part.get("source")
    return isinstance(source, dict) and source.get("type") == "text"


def _unforced(body: Mapping[str, JSON]) -> tuple[Mapping[str, JSON], dict[str, JSON]]:
    """The body without the parameters that force a call or a format, and the removed parameters."""
    freed: dict[str, Any] = dict(body)
    forced: dict[str, JSON] = {}
    choice = body.get("tool_choice")
    if unlike(choice.get("type") if isinstance(choice, dict) else choice, "auto", "none"):
        forced["tool_choice"], freed["tool_choice"] = choice, "auto"
    for name in (*forcing.FORMS, "structured_outputs"):
        if freed.get(name) is not None:
            forced[name] = freed.pop(name)
    for *above, name in _FORMATS:
        within = freed.get(above[0]) if above else freed
        form = within.get(name) if isinstance(within, dict) else None
        kind = form.get("type") if isinstance(form, dict) else form
        if isinstance(within, dict) and unlike(kind, "text"):
            forced[".".join([*above, name])] = kind
            freed = {**freed, **({above[0]: {**within, name: None}} if above else {name: None})}
    return freed, forced
