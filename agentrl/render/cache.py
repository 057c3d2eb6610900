"""A cache for probed and bound templates, whose keys are made from values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_SAMPLE = 'The 12 quick brown foxes\n\n\tjumped_over(x) → naïve 晴れ <|im_end|> </s> {"a": [1, 2]}'
_FINGERPRINTS: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()


class Cache(Generic[T]):
    """A cache of at most `size` values. The oldest value is dropped first. If two threads make a value for the same
    key, both get the first value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[str, T] = {}
        self._lock = Lock()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The value of `key`, made if needed. An exception of `make` is passed on and not remembered."""
        with self._lock:
            if key in self._values:
                return self._values[key]
        value = make()
        with self._lock:
            while len(self._values) >= self._size:
                del self._values[next(iter(self._values))]
            return self._values.setdefault(key, value)


def key_of(*parts: Any) -> str:
    """A cache key made from the content of JSON-like values."""
    return json.dumps(parts, sort_keys=True, default=str)


def fingerprint(tokenizer: Any) -> str:
    """A text that identifies a tokenizer within a process, made from name, vocabulary, special tokens, and a sample of
    the merges."""
    now = f"{len(tokenizer)} {tokenizer.special_tokens_map}"
    before, cached = _FINGERPRINTS.get(tokenizer, ("", ""))
    if before == now:
        return cached
    parts = (
        getattr(tokenizer, "name_or_path", ""),
        hash(frozenset(tokenizer.get_vocab().items())),
        now,
        repr(sorted(tokenizer.added_tokens_decoder.items())),
        tokenizer.encode(_SAMPLE, add_special_tokens=False),
    )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    _FINGERPRINTS[tokenizer] = (now, digest)
    return digest
