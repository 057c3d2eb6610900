"""A cache for the tokens of long beginnings shared by many prompts: for example, a coding agent's instructions and
tools.

A tokenizer first cuts a text at its special tokens. So a text with a special token at its end has the same tokens
before any other text. The cache is keyed by content.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.render.raw import HARD_TEXTS, encodes_in_rust

_LONG = 512
"""Minimum number of characters of a cached text."""
_MOST = 4 << 20
"""Maximum number of cached tokens, which take 16 MiB."""
_MARKERS = 16
"""Maximum number of a template's special tokens that are tried."""

Encode = Callable[[str], list[int]]


class TokenMemory:
    """A cache of tokens. The least recently used tokens are dropped first. Safe to share by threads."""

    def __init__(self, most: int) -> None:
        self._most, self.size = most, 0
        self.entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: bytes, make: Callable[[], Sequence[int]]) -> array[int]:
        with self._lock:
            if (cached := self.entries.get(key)) is not None:
                self.entries.move_to_end(key)
                return cached
        tokens = array("i", make())
        with self._lock:
            if key not in self.entries and len(tokens) <= self._most:
                self.entries[key] = tokens
                self.size += len(tokens)
            while self.size > self._most:
                self.size -= len(self.entries.popitem(last=False)[1])
        return tokens


_memory = TokenMemory(_MOST)
_CUTS: WeakKeyDictionary[Any, dict[tuple[str, ...], dict[str, int]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class BeginningEncoder:
    """Returns the same tokens as `encode`. A text is cut after special tokens, and the tokens of each long piece but
    the last are cached."""

    encode: Encode
    cuts: re.Pattern[str]
    ids: dict[str, int]
    """Text -> id of the special tokens after which a text may be cut."""
    tokenizer: str
    """A key that identifies the tokenizer."""

    def __call__(self, text: str) -> list[int]:
        tokens, before, offset = list[int](), "", 0
        for piece, marker in self._pieces(text):
            tokens += _memory.get(self._key(before, piece), partial(self._tokens_after, before, piece))
            if tokens[-1:] != [self.ids[marker]]:  # another token begins before it and takes a part of it
                return self.encode(text)
            before, offset = marker, offset + len(piece)
        return tokens + self._tokens_after(before, text[offset:]) if offset < len(text) else tokens

    def _pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """Cut a text into long pieces, each with a special token at its end."""
        start = 0
        for match in self.cuts.finditer(text, _LONG):
            if match.end() - start >= _LONG:
                yield text[start : match.end()], match.group()
                start = match.end()

    def _tokens_after(self, before: str, text: str) -> list[int]:
        """The tokens of a text after the special token `before`, or at the start of a text."""
        tokens = self.encode(before + text)
        return tokens[1:] if before else tokens

    def _key(self, before: str, piece: str) -> bytes:
        whole = f"{self.tokenizer}\n{before}\n{piece}"
        return blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def remembering(encode: Encode, tokenizer: Any, source: str, fingerprint: str) -> Encode:
    """A function like `encode` that caches long beginnings, if the tokenizer always cuts at a special token of the
    template. Otherwise `encode` itself.

    `source` is the template's text.
    """
    markers = markers_in(tokenizer, source)
    cached = _CUTS.setdefault(tokenizer, {}) if markers else {}
    if (key := (*markers, fingerprint)) not in cached:
        cached[key] = {text: token for text, token in markers.items() if _cuts(encode, text, token)}
    ids = cached[key]
    if not ids:
        return encode
    cuts = re.compile("|".join(map(re.escape, ids)))
    return BeginningEncoder(encode, cuts, ids, fingerprint)


def markers_in(tokenizer: Any, source: str) -> dict[str, int]:
    """Text -> id of the added tokens in the template's text that swallow no neighbouring characters, and are part of no
    other token."""
    if not encodes_in_rust(tokenizer):
        return {}
    added = {i: token for i, token in tokenizer.added_tokens_decoder.items() if token.content}
    ends = {str(value) for value in tokenizer.special_tokens_map.values()}
    markers = {
        token.content: i
        for i, token in added.items()
        if token.content in source or token.content in ends
        if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        if not any(token.content in other.content for j, other in added.items() if j != i)
    }
    return dict(list(markers.items())[:_MARKERS])


def _cuts(encode: Encode, marker: str, token: int) -> bool:
    """Whether the texts before and after a special token are encoded independently, tried with texts that are hard to
    encode."""
    for before in HARD_TEXTS:
        head = encode(before + marker)
        for after in HARD_TEXTS:
            tail = encode(marker + after)
            if tail[:1] != [token] or encode(before + marker + after) != [*head, *tail[1:]]:
                return False
    return True
