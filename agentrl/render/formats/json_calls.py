"""Calls that are one JSON object each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.render.read.calls import Attempt, Types, broken, search
from agentrl.render.read.json_value import Unread, json_at
from agentrl.render.read.lexer import Lexed, loose
from agentrl.types import JSON

PYTHON_TAG = "<|python_tag|>"
"""Llama 3 models may sample it before a call although their template does not write it."""


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """One JSON object a call, between `open` and `close`; with neither, the object itself begins the turn.

    Without `name_key` the object has one key, the name, and its value is the arguments.
    """

    open: str
    close: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    in_block: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must find for `read`."""
        if self.open:
            return (self.open, self.close) if self.close else (self.open,)
        return () if self.in_block else (PYTHON_TAG,)

    def find(self, lexed: Lexed, at: int) -> int | None:
        """With no marker a call is found at `at` only."""
        if self.open:
            mark = search(loose(self.open), lexed, at)
            return mark.start() if mark else None
        tag = re.compile(r"\s*" + re.escape(PYTHON_TAG)).match(lexed.syntax, at)
        if tag and not self.in_block:
            return tag.end() - len(PYTHON_TAG)
        key = re.escape(self.name_key) if self.name_key else r"[^\"\s]+"
        begins = r"\{" if self.in_block else rf'\{{\s*"{key}"\s*:'
        return at if re.compile(r"[\s;,]*" + begins).match(lexed.text, at) else None

    def read(self, lexed: Lexed, at: int, types: Types) -> Attempt:
        """The call that opens at `at`."""
        opening = re.compile(loose(self.open or PYTHON_TAG)).match(lexed.syntax, at)
        begin = opening.end() if opening else at
        text = lexed.text
        start = begin + len(text[begin:]) - len(text[begin:].lstrip(" \t\r\n;,"))
        value, end = json_at(text, start)
        if isinstance(value, Unread):
            return self._broken(lexed, at, begin, begin, f"the call is not valid JSON: {value.reason}")
        if not self.close:
            return self._check(value, at, end, text[start:end])
        mark = search(loose(self.close), lexed, end)
        if mark is None or text[end : mark.start()].strip():
            return self._broken(lexed, at, begin, end, "text after the call's JSON object")
        return self._check(value, at, mark.end(), text[begin : mark.start()])

    def _broken(self, lexed: Lexed, at: int, begin: int, seen: int, error: str) -> Attempt:
        return broken(lexed, at, begin, seen, error, (self.open, self.close))

    def _check(self, value: Any, start: int, stop: int, raw: str) -> Attempt:
        if not isinstance(value, dict):
            return Attempt(start, stop, raw, error="the call is not a JSON object")
        if not self.name_key:
            value = next(({"name": k, "arguments": v} for k, v in value.items() if len(value) == 1), {})
        name_key, arguments_key = (self.name_key or "name"), (self.arguments_key or "arguments")
        name, arguments = value.get(name_key), value.get(arguments_key)
        sampled_id = value.get(self.id_key) if self.id_key else None
        call_id = sampled_id if isinstance(sampled_id, str) else ""
        if not isinstance(name, str) or not name:
            return Attempt(start, stop, raw, id=call_id, error=f'the call has no "{name_key}"')
        if not isinstance(arguments, dict):
            error = f'the call\'s "{arguments_key}" must be a JSON object'
            return Attempt(start, stop, raw, name, id=call_id, error=error)
        return Attempt(start, stop, raw, name, arguments, call_id)

    def write(self, name: str, arguments: Mapping[str, JSON]) -> str:
        """A call in this format."""
        body = json.dumps({self.name_key: name, self.arguments_key: arguments}, ensure_ascii=False)
        return f"{self.open}\n{body}\n{self.close}" if self.open else body


CONVENTION = JsonCalls("<tool_call>", "</tool_call>")
"""For a template that writes no calls itself: the most widely trained convention."""
