"""A second BPE that encodes in place of the tokenizer's, as soon as a proof of equal tokens is there.

`fastokens` (Apache-2.0) reads the same vocabulary and merges, and has a different algorithm: long texts take a sixth to
a tenth of the time. The tokens must be equal, so they are compared with the tokenizer's:

- once for each tokenizer on a machine, by a process in the background: every token of the vocabulary, merges that
  compete, and texts that are hard to cut into words. The verdict lies in ~/.cache/agentrl/fast_bpe, under a hash of the
  tokenizer's JSON and the versions. Until then, and if fastokens is slower, the tokenizer encodes.
- later one text in `CHECKED_EVERY`, as long as a process runs.

The first difference or error switches the fast BPE off for the tokenizer, with a warning. Trainer and engine always see
the same tokens: at stake is the cut of a text into tokens.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentrl._util.file_lock import try_lock, unlock
from agentrl._util.files import write_atomically
from agentrl.errors import ConfigError
from agentrl.render.hard_texts import hard_texts
from agentrl.render.raw import encoder_of, encodes_directly

VARIABLE = "AGENTRL_FAST_BPE"
"""The environment variable. "off": tokenizers encode. "on": a renderer's load waits for the proof, whatever the size of
the vocabulary. Without it, a proof is made in the background, for vocabularies of at least `LEAST_TOKENS`."""
LEAST_TOKENS = 16_384
"""With a smaller vocabulary the texts of a turn are encoded before a proof is worth its seconds."""
CHECKED_EVERY = 64
_PROOF = 1
"""The number of the proof. A change of the texts needs another number, so that earlier verdicts do not count."""
_RIVALS = 30_000
"""Approximate number of merges that are tried together with rival merges."""
_PATIENCE_S, _LOOK_S = 300.0, 1.0
"""Seconds until a proof is given up, and between two looks for the verdict of another process."""

Encode = Callable[[str], list[int]]

_log = logging.getLogger("agentrl")
_BPES: WeakKeyDictionary[Any, FastBpe] = WeakKeyDictionary()
_loading = threading.Lock()
_provers: set[subprocess.Popen[str]] = set()


@dataclass(slots=True)
class FastBpe:
    """The fast BPE of a tokenizer. All templates with the tokenizer share the object, which does not hold it."""

    name: str
    size: tuple[int, bool]
    """The constants of a tokenizer: the number of tokens, and whether special tokens are text."""
    encode: Encode | None = None
    """None: there is no proof yet, or the fast BPE is off."""
    off: str = ""
    """The reason why the fast BPE is off."""
    every: int = CHECKED_EVERY
    """1 text in `every` is encoded in both ways. The text decides, so that a run repeats exactly."""
    compared: int = 0

    def switch_off(self, reason: str) -> None:
        """The tokenizer encodes from now on."""
        self.encode = None
        if not self.off:
            self.off = reason
            _log.warning("the fast BPE is off for %s, whose own encodes from now on: %s", self.name, reason)


def fast_encoder_of(tokenizer: Any) -> Encode:
    """`encoder_of`, or the fast BPE as soon as it is proved. Raises ConfigError if `AGENTRL_FAST_BPE` is on and
    fastokens is not installed, and for a setting other than on and off."""
    tokenizers_own = encoder_of(tokenizer)
    is_on = _setting()
    if is_on is False or not encodes_directly(tokenizer) or tokenizer.split_special_tokens:
        return tokenizers_own
    if is_on is None and (len(tokenizer) < LEAST_TOKENS or _version() is None):
        return tokenizers_own
    with _loading:
        bpe = _BPES.get(tokenizer)
        if bpe is None or bpe.size != _size(tokenizer):
            bpe = _BPES[tokenizer] = _begun(tokenizer, wait=bool(is_on))
    return _with_comparisons(tokenizer, tokenizers_own, bpe)


def _with_comparisons(tokenizer: Any, tokenizers_own: Encode, bpe: FastBpe) -> Encode:
    def encode(text: str) -> list[int]:
        fast = bpe.encode
        if fast is None:
            return tokenizers_own(text)
        if _size(tokenizer) != bpe.size:
            bpe.switch_off("the tokenizer was changed after it was loaded")
            return tokenizers_own(text)
        try:
            actual = fast(text)
        except Exception as exc:  # noqa: BLE001 - the boundary of another library: its tokenizer takes over
            bpe.switch_off(f"it fails on a text ({type(exc).__name__}: {exc})")
            return tokenizers_own(text)
        if zlib.crc32(text.encode(errors="replace")) % bpe.every:
            return actual
        expected = tokenizers_own(text)
        bpe.compared += 1
        if actual != expected:
            bpe.switch_off(f"it encodes {_difference(text, expected, actual)}; report this")
        return expected

    return encode


def _size(tokenizer: Any) -> tuple[int, bool]:
    return len(tokenizer), bool(tokenizer.split_special_tokens)


def _setting() -> bool | None:
    """Whether the variable is on or off; None without it."""
    setting = os.environ.get(VARIABLE, "").lower()
    if setting not in ("", "0", "off", "1", "on"):
        raise ConfigError(f"{VARIABLE} is {setting!r}: set it to on or off, or unset it")
    return setting in ("1", "on") if setting else None


def _version() -> str | None:
    """The version of fastokens; None if it is not installed."""
    try:
        return version("fastokens")
    except PackageNotFoundError:
        return None


def _begun(tokenizer: Any, *, wait: bool) -> FastBpe:
    """The fast BPE of a tokenizer. A thread looks for its proof, unless the caller waits for it."""
    if _version() is None:
        raise ConfigError(
            f"{VARIABLE} is on, but fastokens is not installed: pip install 'agentrl-sdk[train]', or unset the variable"
        )
    bpe = FastBpe(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__, _size(tokenizer))
    if wait:
        _load(bpe, tokenizer.backend_tokenizer)
    else:
        arguments = (bpe, tokenizer.backend_tokenizer)
        threading.Thread(target=_load, args=arguments, name="agentrl-fast-bpe", daemon=True).start()
    return bpe


def _load(bpe: FastBpe, backend: Any) -> None:
    """Let the fast BPE encode if its proof says so. A prover that fails proves nothing, and the tokenizer encodes."""
    try:
        serialized = backend.to_str()
        reason = _verdict(serialized)
        if reason:
            bpe.off = reason
            _log.info("the fast BPE is off for %s: %s", bpe.name, reason)
        elif reason is not None and not bpe.off:
            bpe.encode = reader(serialized)
    except Exception as exc:  # noqa: BLE001 - the boundary of another library, which cannot read every tokenizer
        bpe.switch_off(f"it cannot be used ({type(exc).__name__}: {exc})")


def reader(serialized: str) -> Encode:
    """The encoder of fastokens for a tokenizer's JSON."""
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_json_str(serialized)
    return lambda text: list(tokenizer.encode(text).ids)


def _verdict(serialized: str) -> str | None:
    """The reason against the fast BPE, empty if there is none; None if no proof can be made. The proof is made once a
    machine; other processes wait for it."""
    versions = f"{_PROOF}-{version('fastokens')}-{version('tokenizers')}"
    file = _folder() / f"{hashlib.sha256(serialized.encode()).hexdigest()[:32]}-{versions}.json"
    lock, deadline = file.with_suffix(".lock"), time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if file.exists():
            return str(json.loads(file.read_text(encoding="utf-8"))["off"])
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            held = try_lock(lock)
        except OSError:
            return _proved(serialized)  # a folder that cannot be written: the proof holds for this process
        if held is None:
            time.sleep(_LOOK_S)
            continue
        try:
            reason = _proved(serialized)
            if reason is not None:
                with suppress(OSError):
                    write_atomically(file, json.dumps({"off": reason}) + "\n")
            return reason
        finally:
            unlock(lock, held)
    return None


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "fast_bpe"


def _proved(serialized: str) -> str | None:
    """The verdict of a process that proves with low priority on one core; None if the process fails."""
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command, pipe = [sys.executable, "-m", "agentrl.render.fast_bpe"], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=environment
    ) as prover:
        _provers.add(prover)
        try:
            printed, _ = prover.communicate(serialized, timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            prover.kill()
            return None
        finally:
            _provers.discard(prover)
    return str(json.loads(printed)["off"]) if prover.returncode == 0 else None


@atexit.register
def _end_provers() -> None:
    for prover in list(_provers):
        prover.kill()


def prove(serialized: str) -> str:
    """Compare both BPEs of a tokenizer's JSON. Returns the reason against the fast BPE, empty if there is none."""
    from fastokens import Tokenizer as Other
    from tokenizers import Tokenizer

    reference, other = Tokenizer.from_str(serialized), Other.from_json_str(serialized)
    definition = json.loads(serialized)
    tokens = [*([token] for token in definition["model"]["vocab"].values()), *_rivals(definition["model"])]
    texts = reference.decode_batch(tokens, skip_special_tokens=False)
    expected = reference.encode_batch_fast(texts, add_special_tokens=False)
    for text, ours, theirs in zip(texts, expected, other.encode_batch(texts), strict=True):
        if ours.ids != theirs.ids:
            return f"it encodes {_difference(text, ours.ids, theirs.ids)}"
    return _compared(
        lambda text: list(reference.encode_batch_fast([text], add_special_tokens=False)[0].ids),
        lambda text: list(other.encode(text).ids),
        hard_texts([token["content"] for token in definition["added_tokens"]]),
    )


def _compared(reference: Encode, other: Encode, texts: Sequence[str]) -> str:
    """The first difference, or that the other is slower; empty if neither."""
    seconds, other_seconds = 0.0, 0.0
    for text in texts:
        began = time.process_time()
        expected = reference(text)
        halfway = time.process_time()
        actual = other(text)
        seconds, other_seconds = seconds + halfway - began, other_seconds + time.process_time() - halfway
        if expected != actual:
            return f"it encodes {_difference(text, expected, actual)}"
    return "it is slower than the tokenizer" if other_seconds > seconds else ""


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


def main() -> None:
    """Prove the tokenizer whose JSON is on stdin."""
    os.nice(10)
    try:
        reason = prove(sys.stdin.read())
    except Exception as exc:  # noqa: BLE001 - the boundary of another library, which cannot read every tokenizer
        reason = f"it cannot be used ({type(exc).__name__}: {exc})"
    sys.stdout.write(json.dumps({"off": reason}))


if __name__ == "__main__":
    main()
