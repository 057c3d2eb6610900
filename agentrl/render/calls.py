"""How a template spells tool calls: derived from known calls that it wrote, trusted once it reads them back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from agentrl.render.lexer import Lexed, Lexer
from agentrl.render.probe import SAID
from agentrl.render.template import Template
from agentrl.types import JSON

PYTHON_TAG = "<|python_tag|>"
"""Llama 3 models may sample it before a call although their template does not write it."""

KNOWN: Mapping[str, JSON] = {"city": 'Zürich "x"\n', "days": [1, 2.5, None, True], "where": {"a": "{}"}}
"""Arguments of the known call: whatever quoting or nesting may break."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call found at `text[start:stop]`; `error` says why it is malformed."""

    start: int
    stop: int
    raw: str
    name: str = ""
    arguments: Mapping[str, JSON] | None = None
    id: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """One JSON object a call, between `open` and `close`; with neither, the object itself begins the turn."""

    open: str
    close: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must find for `read`."""
        return (self.open, self.close) if self.open else (PYTHON_TAG,)

    def find(self, lexed: Lexed, at: int) -> int | None:
        """Where the next call opens, from `at` on; `at` is where content begins: the start, or behind a call."""
        if self.open:
            mark = lexed.next(at, self.open)
            return mark.start if mark else None
        tag = lexed.next(at, PYTHON_TAG)
        if tag and not lexed.text[at : tag.start].strip():
            return tag.start
        object_here = re.compile(rf'[\s;,]*\{{\s*"{re.escape(self.name_key)}"\s*:').match(lexed.text, at)
        return at if object_here else None

    def read(self, lexed: Lexed, at: int) -> Attempt:
        """The call that opens at `at`. Never raises: what cannot be read is an Attempt with its error."""
        opening = lexed.next(at, self.open or PYTHON_TAG)
        begin = opening.stop if opening and opening.start == at else at
        text = lexed.text
        start = begin + len(text[begin:]) - len(text[begin:].lstrip(" \t\r\n;,"))
        try:
            value, end = _DECODER.raw_decode(text, start)
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (ValueError, RecursionError) as exc:
            reason = getattr(exc, "msg", None) or type(exc).__name__
            return self._broken(lexed, at, begin, begin, f"the call is not valid JSON: {reason}")
        if not self.close:
            return self._check(value, at, end, text[start:end])
        mark = lexed.next(end, self.close)
        if mark is None or text[end : mark.start].strip():
            return self._broken(lexed, at, begin, end, "there is text after the call's JSON object")
        return self._check(value, at, mark.stop, text[begin : mark.start])

    def _broken(self, lexed: Lexed, at: int, begin: int, seen: int, error: str) -> Attempt:
        """An attempt that ends at its close, else before the next call, else with the turn."""
        close = lexed.next(seen, self.close) if self.close else None
        other = lexed.next(seen, self.open) if self.open else None
        if close and not (other and other.start < close.start):
            return Attempt(at, close.stop, lexed.text[begin : close.start], error=error)
        end = other.start if other else len(lexed.text)
        return Attempt(at, end, lexed.text[begin:end], error="the call is not closed" if self.close else error)

    def _check(self, value: Any, start: int, stop: int, raw: str) -> Attempt:
        if not isinstance(value, dict):
            return Attempt(start, stop, raw, error="the call is not a JSON object")
        name, arguments = value.get(self.name_key), value.get(self.arguments_key)
        sampled_id = value.get(self.id_key) if self.id_key else None
        call_id = sampled_id if isinstance(sampled_id, str) else ""
        if not isinstance(name, str) or not name:
            return Attempt(start, stop, raw, id=call_id, error=f'the call has no "{self.name_key}"')
        if not isinstance(arguments, dict):
            error = f'the call\'s "{self.arguments_key}" must be a JSON object'
            return Attempt(start, stop, raw, name, id=call_id, error=error)
        return Attempt(start, stop, raw, name, arguments, call_id)

    def write(self, name: str, arguments: Mapping[str, JSON]) -> str:
        """A call in this format."""
        body = json.dumps({self.name_key: name, self.arguments_key: arguments}, ensure_ascii=False)
        return f"{self.open}\n{body}\n{self.close}" if self.open else body


FALLBACK = JsonCalls("<tool_call>", "</tool_call>")
"""For a template that writes no calls itself: the most widely trained convention."""


def known_call(count: int = 1, content: str = "") -> dict[str, Any]:
    """An assistant message with `count` calls whose reading is known."""
    calls = [
        {
            "id": f"call0000{i}",
            "type": "function",
            "function": {"name": "lookup", "arguments": {**KNOWN, "i": i}},
        }
        for i in range(count)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def derive(template: Template, written: Sequence[str]) -> JsonCalls | None:
    """The format of `written`, where written[n] is a sampled turn with n + 1 known calls and without a stop token.

    None if the calls are not JSON objects, or if reading does not give back what was written.
    """
    for candidate in _candidates(written[0]):
        lexer = Lexer(template, candidate.markers)
        if all(_reads_back(candidate, lexer(template.encode(text)), n + 1) for n, text in enumerate(written)):
            return candidate
    return None


def _candidates(text: str) -> list[JsonCalls]:
    """Each JSON object in the text that holds the known arguments, with what stands around it as its markers."""
    found = []
    arguments = {**KNOWN, "i": 0}
    for brace in re.finditer(r"\{", text):
        try:
            value, end = _DECODER.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        keys = {json.dumps(v, sort_keys=True): k for k, v in value.items()}
        name_key, arguments_key = keys.get('"lookup"'), keys.get(json.dumps(arguments, sort_keys=True))
        if name_key and arguments_key:
            before = text[: brace.start()].rpartition("</think>")[2].rpartition(SAID)[2].strip()
            found.append(JsonCalls(before, text[end:].strip(), name_key, arguments_key, keys.get('"call00000"', "")))
    return found


def _reads_back(calls: JsonCalls, lexed: Lexed, count: int) -> bool:
    at = 0
    for i in range(count):
        start = calls.find(lexed, at)
        if start is None:
            return False
        attempt = calls.read(lexed, start)
        if attempt.error or attempt.name != "lookup" or attempt.arguments != {**KNOWN, "i": i}:
            return False
        at = attempt.stop
    return not lexed.text[at:].strip()


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)
