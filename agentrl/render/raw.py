"""Call a tokenizer's Rust code without the Python code around it, if both give the same tokens in a test."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

_RUST = ("transformers.tokenization_utils_tokenizers", "transformers.tokenization_utils_fast")
"""The modules of transformers that define the tokenizers in Rust."""
_BASE = "transformers.tokenization_utils_base"

HARD_TEXTS = (
    "The 12 quick brown foxes\n\n\tjumped_over(x) → naïve 晴れ 🚆",
    '  spaces  before, within\u00a0 and after  \n\n\n{"a": [1, 2.50], "b": "\\u2028\\"\\\\"}\r\n',
    "e\u0301 \u200b\u2028 \ufffd \x00\x1b[0m <|not_a_token|> </s> [INST] ▁x\u2581 ﬁ",
    "x",
    " ",
    "\n",
)
_MARKERS = 64
"""Maximum number of added tokens that are tried. A tokenizer may have thousands."""

_PROVED: WeakKeyDictionary[Any, tuple[int, bool]] = WeakKeyDictionary()


def encoder_of(tokenizer: Any) -> Callable[[str], list[int]]:
    """The fastest exact function for encoding a text, without added tokens such as a beginning of sequence.

    transformers' `encode` spends 25 us on each text and computes unused offsets. The Rust code is called directly if
    both functions agree on texts that are hard to encode, alone and beside every added token.
    """

    def slowly(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def fast(text: str) -> list[int]:
        backend = tokenizer.backend_tokenizer
        if backend.truncation is not None or backend.padding is not None:
            return slowly(text)  # another user of the tokenizer set them; `encode` removes them
        if backend.encode_special_tokens != tokenizer.split_special_tokens:
            return slowly(text)
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    if not encodes_in_rust(tokenizer):
        return slowly
    size = len(tokenizer)
    if _PROVED.get(tokenizer, (0, False))[0] != size:
        _PROVED[tokenizer] = (size, all(fast(text) == slowly(text) for text in _hard_texts(tokenizer)))
    return fast if _PROVED[tokenizer][1] else slowly


def encodes_in_rust(tokenizer: Any) -> bool:
    """Whether the tokenizer's `encode` is transformers' own function around a tokenizer in Rust."""
    return _encodes_plainly(tokenizer.__class__) and hasattr(tokenizer.backend_tokenizer, "encode_batch_fast")


def encodes_directly(tokenizer: Any) -> bool:
    """Whether `encoder_of`, which was called before, calls the Rust code."""
    return encodes_in_rust(tokenizer) and _PROVED.get(tokenizer) == (len(tokenizer), True)


def _hard_texts(tokenizer: Any) -> Iterator[str]:
    yield from HARD_TEXTS
    markers = [token.content for token in tokenizer.added_tokens_decoder.values()]
    for marker in markers[: _MARKERS // 2] + markers[-_MARKERS // 2 :]:
        yield f"{marker} a{marker}\n\n{marker}{marker}b {marker}"


@cache
def _encodes_plainly(kind: Hashable) -> bool:
    """Whether the `encode` of a tokenizer class is transformers' own."""
    names = ("encode", "_get_padding_truncation_strategies", "_encode_plus", "set_truncation_and_padding")
    modules = [getattr(getattr(kind, name, None), "__module__", "") for name in names]
    return modules[:2] == [_BASE, _BASE] and all(module in _RUST for module in modules[2:])


@cache
def decodes_plainly(kind: Hashable) -> bool:
    """Whether the `decode` of a tokenizer class is transformers' own: a check of each id in Python before the call of
    Rust."""
    modules = [getattr(getattr(kind, name, None), "__module__", "") for name in ("decode", "_decode")]
    return modules[0] == _BASE and modules[1] in _RUST
