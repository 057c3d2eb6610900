"""Special tokens in the text of messages: counted, and encoded as text where requested.

A web page may contain `<|im_start|>`. In the template's own render, this marker is encoded as a special token, and so
forges a turn. Encoded as text, the marker gets the tokens of a tokenizer that lacks this special token.

To encode markers as text, a guard (a private character) is put after the first character of each marker, before the
template gets the text. So the template sees no marker. `Spelling.encode` removes the guards again.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render.cache import Cache

GUARD = "\U0010fffd"
_ESCAPED = ("\\U0010fffd", "\\udbff\\udffd")
"""The guard as written by a template that writes text as Python or as JSON in ASCII."""
_ANCHOR = "\U0010fffc"
"""Stands for the special token before a text, because some tokenizers put a space at the start of a text."""
_PLAIN: Cache[_Plain] = Cache(8)
_logger = logging.getLogger("agentrl")
_warned = False


@dataclass(frozen=True, eq=False)
class Markers:
    """The markers of a template: the special tokens of its tokenizer, and other added tokens in the template's text."""

    tokenizer: Any
    ids: Mapping[str, int]
    """Text of a marker -> token id."""
    turn_markers: frozenset[str] = frozenset()
    """Markers within the model's own turns, such as `</think>`. Texts often mention these markers, which cannot forge a
    turn."""

    @classmethod
    def of(cls, tokenizer: Any, source: str, special_ids: Iterable[int]) -> Markers:
        added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
        special = {added.get(i) or tokenizer.convert_ids_to_tokens(i): i for i in special_ids}
        in_source = {text: i for i, text in added.items() if text in source and not text.isspace()}
        return cls(tokenizer, {text: i for text, i in {**in_source, **special}.items() if text and len(text) > 1})

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A pattern for any marker. A longer marker takes precedence, as in a tokenizer."""
        return re.compile(_any_of(self.ids) or r"(?!)")

    @cached_property
    def _forging(self) -> frozenset[str]:
        """The markers that can forge a turn."""
        return frozenset(self.ids) - self.turn_markers

    @cached_property
    def _first(self) -> frozenset[str]:
        """The first characters of the markers."""
        return frozenset(text[0] for text in self.ids)

    def count(self, value: Any) -> int:
        """The number of markers that can forge a turn in all strings of a value."""
        count, first, parts = 0, self._first, [value]
        while parts:
            part = parts.pop()
            if isinstance(part, str):
                if any(map(part.__contains__, first)):
                    count += sum(map(self._forging.__contains__, self.pattern.findall(part)))
            elif isinstance(part, (dict, Mapping)):  # checked faster than the abstract class alone
                parts += chain(part, part.values())
            elif isinstance(part, list | tuple):
                parts += part
        return count

    def guarded(self, value: Any, but: Iterable[str] = ()) -> Any:
        """The value with guards in all markers of its strings, except the markers in `but`."""
        if isinstance(value, str):
            return self._guarded(value, but)
        if isinstance(value, Mapping):
            return {self.guarded(key, but): self.guarded(item, but) for key, item in value.items()}
        return [self.guarded(item, but) for item in value] if isinstance(value, list | tuple) else value

    def _guarded(self, text: str, but: Iterable[str]) -> str:
        text = text.replace(GUARD, "\ufffd") if GUARD in text else text
        parts, start, offset = list[str](), 0, 0
        while match := self.pattern.search(text, offset):  # a marker may begin within a marker
            offset = match.start() + 1
            if match.group() not in but:
                parts.append(text[start:offset])
                start = offset
        return GUARD.join([*parts, text[start:]])


NO_MARKERS = Markers(None, {})


def _any_of(words: Collection[str]) -> str:
    """A regular expression for any of the words, where the longest takes precedence. A common beginning of several
    words is matched only once."""
    rests: dict[str, set[str]] = {}
    for word in filter(None, words):
        rests.setdefault(word[0], set()).add(word[1:])
    if not rests:
        return ""
    forms = "|".join(re.escape(first) + _any_of(rest) for first, rest in sorted(rests.items()))
    return f"(?:{forms}){'?' if '' in words else ''}"


def unescaped(text: str) -> str:
    """A template's text with its escaped guards restored to the private character."""
    if "0010fffd" in text or "udffd" in text:
        for escaped in _ESCAPED:
            text = text.replace(escaped, GUARD)
    return text


def warn(count: int) -> None:
    """Log a warning if `count` special tokens of messages were encoded as special tokens, once in a process."""
    global _warned
    if count and not _warned:
        _warned = True
        _logger.warning(
            "%d special tokens are in text of a user, a tool or a document; they are encoded as such, and can "
            'forge turns. Set special_tokens to "as_text" to encode them as text',
            count,
        )


@dataclass(frozen=True, eq=False)
class Spelling:
    """Encodes guarded text. Raises TemplateError if the tokenizer cannot be rebuilt without its special tokens."""

    markers: Markers
    encode_plainly: Callable[[str, str], list[int]]
    """A function that encodes a text without guards after a special token, as `Template.encode` does."""
    name: str
    """The tokenizer's name in error messages."""
    key: str
    """A key that identifies the tokenizer."""

    def encode(self, text: str, after: str = "") -> list[int]:
        """The tokens of the text, as if the tokenizer did not know the guarded markers.

        Special tokens cut a text into parts, and each part is encoded separately. So only the parts with a guard differ
        from the usual tokens.
        """
        tokens, start = list[int](), 0
        for begin, end, previous, following in self._guarded_parts(text, after):
            tokens += self.encode_plainly(text[start:begin], "" if start else after)
            tokens += self._part(text[begin:end], previous, following)
            start = end
        return tokens + self.encode_plainly(text[start:], "" if start else after)

    def _guarded_parts(self, text: str, after: str) -> Iterator[tuple[int, int, str, str]]:
        """Yield each part that has a guard, with the special tokens around the part."""
        start, previous = 0, after
        for match in self.markers.pattern.finditer(text):
            if GUARD in text[start : match.start()]:
                yield start, match.start(), previous, match.group()
            start, previous = match.end(), match.group()
        if GUARD in text[start:]:
            yield start, len(text), previous, ""

    def _part(self, text: str, previous: str, following: str) -> list[int]:
        text = text.replace(GUARD, "")
        if self._swallows(previous, "rstrip"):
            text = text.lstrip()
        if self._swallows(following, "lstrip"):
            text = text.rstrip()
        return self.plain.encode(text, anchored=bool(previous))

    def _swallows(self, marker: str, side: str) -> bool:
        token = self.markers.tokenizer.added_tokens_decoder.get(self.markers.ids.get(marker, -1))
        return bool(getattr(token, side, False))

    @cached_property
    def plain(self) -> _Plain:
        """The tokenizer without its markers, shared by all templates of the process."""
        key = f"{self.key} {sorted(self.markers.ids.items())}"
        return _PLAIN.get(key, lambda: _Plain.of(self.markers, self.name))


@dataclass(frozen=True, eq=False)
class _Plain:
    """A tokenizer without some of its added tokens."""

    tokenizer: Any
    ids: Mapping[int, int]
    """Id in this tokenizer -> id in the original tokenizer, where both differ."""

    @classmethod
    def of(cls, markers: Markers, name: str) -> _Plain:
        backend = getattr(markers.tokenizer, "backend_tokenizer", None)
        if backend is None or not hasattr(backend, "to_str"):
            raise TemplateError(
                f'special_tokens "as_text" needs a tokenizer of the library tokenizers (tokenizer.json), which {name} '
                'is not; set special_tokens to "keep"'
            )
        plain = cls._reduced(backend, markers.ids)
        for marker, token in markers.ids.items():
            if token in plain.encode(f"a{marker}a", anchored=True):
                raise TemplateError(
                    f'special_tokens "as_text": the tokenizer of {name} cannot encode {marker!r} as text; '
                    'set special_tokens to "keep"'
                )
        return plain

    @classmethod
    def _reduced(cls, backend: Any, without: Collection[str]) -> _Plain:
        from tokenizers import Tokenizer

        data = json.loads(backend.to_str())
        tokens = [token for token in data["added_tokens"] if token["content"] not in without]
        data |= {"added_tokens": tokens, "post_processor": None, "truncation": None, "padding": None}
        tokenizer: Any = Tokenizer.from_str(json.dumps(data))
        tokenizer.add_special_tokens([_ANCHOR])
        ids = {tokenizer.token_to_id(token["content"]): token["id"] for token in tokens}
        moved = {ours: theirs for ours, theirs in ids.items() if ours != theirs}
        return cls(tokenizer, moved)

    def encode(self, text: str, *, anchored: bool) -> list[int]:
        """The tokens of a text that follows a special token (`anchored`) or begins the input."""
        if not text:
            return []
        encoded: Sequence[int] = self.tokenizer.encode(
            (_ANCHOR if anchored else "") + text, add_special_tokens=False
        ).ids
        tokens = encoded[1:] if anchored else encoded
        return [self.ids.get(token, token) for token in tokens]
