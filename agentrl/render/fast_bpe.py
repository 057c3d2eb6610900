"""A second BPE in place of the tokenizer's BPE, on request by a variable: ten times as fast, and compared forever.

`fastokens` (Apache-2.0) reads the same vocabulary and merges, and has a different algorithm. The equality of the tokens
is not proved. So the tokens are compared with the tokenizer's:

- at load, on every token of the vocabulary, on merges that compete, and on texts that are hard to cut into words;
- later, on one text in `CHECKED_EVERY`, as long as the process runs.

The first difference or error switches the fast BPE off for the tokenizer, with a warning, and the tokenizer's own
tokens are taken. At stake is the cut of a text into tokens. Trainer and engine always see the same tokens.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary, ref

from agentrl.errors import ConfigError
from agentrl.render.hard_texts import hard_texts
from agentrl.render.raw import encoder_of
from agentrl.types import CheckCounts, Rendered

VARIABLE = "AGENTRL_FAST_BPE"
"""The environment variable. "on" at the load of a renderer lets a fast BPE encode."""
CHECKED_EVERY = 64
_RIVALS = 30_000
"""Approximate number of merges that are tried together with rival merges."""

P = ParamSpec("P")
Encode = Callable[[str], list[int]]

_log = logging.getLogger("agentrl")
LOADED: WeakKeyDictionary[Any, FastBpe] = WeakKeyDictionary()
_loading = threading.Lock()


class _Compared(threading.local):
    """How many texts this thread has encoded in both ways, and how many differed."""

    texts = 0
    different = 0


comparisons = _Compared()


@dataclass(slots=True)
class FastBpe:
    """Encodes like the tokenizer, by a fast BPE until the first difference."""

    name: str
    reference: Encode
    """The tokenizer's own encoder."""
    other: Encode
    size: Callable[[], tuple[int, bool]]
    """The constants of a tokenizer: the number of tokens, and whether special tokens are text."""
    loaded: tuple[int, bool]
    every: int = CHECKED_EVERY
    """1 text in `every` is encoded in both ways. The text decides, so a run repeats exactly."""
    off: str = ""
    """The reason of the switch-off. Empty: the fast BPE is on."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text. No token is added."""
        if self.off or self._is_changed():
            return self.reference(text)
        try:
            actual = self.other(text)
        except Exception as exc:  # noqa: BLE001 - the boundary of another library: its tokenizer takes over
            self._switch_off(f"it fails on a text ({type(exc).__name__}: {exc})")
            return self.reference(text)
        if zlib.crc32(text.encode(errors="replace")) % self.every:
            return actual
        expected = self.reference(text)
        comparisons.texts += 1
        if actual != expected:
            comparisons.different += 1
            self._switch_off(f"it encodes {_difference(text, expected, actual)}; report this")
        return expected

    def check(self, texts: Sequence[str]) -> None:
        """Compare on these texts. Switch off at the first difference, or if the tokenizer is faster."""
        spent = [0.0, 0.0]
        for text in texts:
            began = time.process_time()
            expected = self.reference(text)
            halfway = time.process_time()
            actual = self.other(text)
            spent = [spent[0] + halfway - began, spent[1] + time.process_time() - halfway]
            if expected != actual:
                return self._switch_off(f"it encodes {_difference(text, expected, actual)}")
        if spent[1] > spent[0]:
            self._switch_off("it is slower than the tokenizer")
        return None

    def _is_changed(self) -> bool:
        if self.size() == self.loaded:
            return False
        self._switch_off("the tokenizer was changed after it was loaded")
        return True

    def _switch_off(self, why: str) -> None:
        if not self.off:
            self.off = why
            _log.warning("the fast BPE is off for %s, whose own encodes from now on: %s", self.name, why)


def fast_encoder_of(tokenizer: Any) -> Encode:
    """`encoder_of`, or a fast BPE if `AGENTRL_FAST_BPE` is on. Raises ConfigError if fastokens is not installed."""
    encode = encoder_of(tokenizer)
    if not is_asked_for():
        return encode
    with _loading:
        bpe = LOADED.get(tokenizer)
        if bpe is None or bpe.loaded != bpe.size():
            bpe = LOADED[tokenizer] = _loaded(tokenizer)
    return encode if bpe.off else bpe.encode


def is_asked_for() -> bool:
    """Whether the variable is on. Raises ConfigError for a value other than on and off."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() not in ("", "0", "off", "1", "on"):
        raise ConfigError(f"{VARIABLE} is {setting!r}: set it to on or off")
    return setting.lower() in ("1", "on")


def counted(render: Callable[P, Rendered]) -> Callable[P, Rendered]:
    """A method that renders. The result also counts the texts encoded in both ways meanwhile."""

    @functools.wraps(render)
    def rendered(*args: P.args, **kwargs: P.kwargs) -> Rendered:
        texts, different = comparisons.texts, comparisons.different
        result = render(*args, **kwargs)
        if comparisons.texts == texts:
            return result
        compared = CheckCounts(
            encodes_checked=comparisons.texts - texts, encodes_different=comparisons.different - different
        )
        return replace(result, checks=result.checks + compared)

    return rendered


def _loaded(tokenizer: Any) -> FastBpe:
    """The BPE of a tokenizer, compared with the tokenizer. Off if the BPE cannot read the tokenizer.

    The BPE holds the tokenizer by a weak reference. A strong reference in a value of `LOADED` would keep both forever.
    """
    tokenizer_ref = ref(tokenizer)

    def encode(text: str) -> list[int]:
        return encoder_of(tokenizer_ref())(text)

    def size() -> tuple[int, bool]:
        alive: Any = tokenizer_ref()
        return len(alive), bool(alive.split_special_tokens)

    try:
        from fastokens import Tokenizer
    except ImportError as exc:
        raise ConfigError(
            f"{VARIABLE} is on, but fastokens is not installed: pip install 'agentrl-sdk[fast]', or unset the variable"
        ) from exc
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    bpe = FastBpe(name, encode, encode, size, size())
    if bpe.loaded[1]:
        bpe._switch_off("the tokenizer takes special tokens for text")
        return bpe
    try:
        backend = tokenizer.backend_tokenizer
        serialized = backend.to_str()
        other = Tokenizer.from_json_str(serialized)
        bpe.other = lambda text: other.encode(text).ids
        _check_merges(bpe, backend, other, json.loads(serialized)["model"])
        bpe.check(hard_texts(tokenizer))
    except Exception as exc:  # noqa: BLE001 - the boundary of another library, which cannot read every tokenizer
        bpe._switch_off(f"it cannot be used ({type(exc).__name__}: {exc})")
    return bpe


def _check_merges(bpe: FastBpe, backend: Any, other: Any, model: Mapping[str, Any]) -> None:
    """Compare on the text of every token, to detect missing merges, and on merges that compete."""
    places = [*([token] for token in model["vocab"].values()), *_rivals(model)]
    texts = backend.decode_batch(places, skip_special_tokens=False)
    ours, theirs = backend.encode_batch_fast(texts, add_special_tokens=False), other.encode_batch(texts)
    for text, expected, actual in zip(texts, ours, theirs, strict=True):
        if expected.ids != actual.ids:
            return bpe._switch_off(f"it encodes {_difference(text, expected.ids, actual.ids)}")
    return None


def _rivals(model: Mapping[str, Any]) -> Iterator[list[int]]:
    """For each of many merges of `x` and `y`: tokens `w x y z`, with possible merges `w x` and `y z`. The order of the
    merges decides.
    """
    vocab, merges = model["vocab"], [_parts(merge) for merge in model["merges"]]
    before, after = {y: x for x, y in merges}, dict(merges)
    for x, y in merges[:: 1 + len(merges) // _RIVALS]:
        yield [vocab[part] for part in (before.get(x), x, y, after.get(y)) if part is not None]


def _parts(merge: str | Sequence[str]) -> tuple[str, str]:
    """Old files write a merge as a single text."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _difference(text: str, expected: Sequence[int], actual: Sequence[int]) -> str:
    """The first difference of two encodings, as a message."""
    index = next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), 0)
    ours, theirs = list(expected[index : index + 4]), list(actual[index : index + 4])
    return f"{text[:60]!r} otherwise: at token {index} {theirs}, not {ours}"
