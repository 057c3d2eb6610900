"""A second BPE, which encodes in place of the tokenizer's in a process that encodes much text.

`fastokens` (Apache-2.0) reads the same vocabulary and merges, and has a different algorithm: long texts take a sixth to
a tenth of the time. The tokens must be equal, so they are compared with the tokenizer's:

- once for each tokenizer on a machine, in a separate process: every token of the vocabulary, merges that compete, and
  texts that are hard to cut into words. The verdict lies in ~/.cache/agentrl/fast_bpe, under a hash of the tokenizer's
  JSON and the versions. If fastokens is slower, the tokenizer encodes.
- later one text in `CHECKED_EVERY`, as long as a process runs.

The first difference or error switches the fast BPE off for the tokenizer, with a warning. Trainer and engine always see
the same tokens: at stake is the cut of a text into tokens.

To read a large vocabulary takes one to two seconds of CPU, and 120 to 190 MB of memory. So a process reads the
vocabulary only after `PATIENCE` characters, in a thread, while the tokenizer encodes. With `AGENTRL_FAST_BPE=on` the
load of a tokenizer waits for the fast BPE, with `off` the tokenizer encodes always.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from weakref import WeakKeyDictionary

from agentrl._util.file_lock import try_lock, unlock
from agentrl._util.files import write_atomically
from agentrl.errors import ConfigError
from agentrl.render.hard_texts import hard_texts
from agentrl.render.raw import encoder_of, encodes_directly

VARIABLE = "AGENTRL_FAST_BPE"
"""The environment variable: on, off, or unset."""
CHECKED_EVERY = 64
PATIENCE = 10_000_000
"""Number of characters that the tokenizer encodes before a thread loads the fast BPE: three to seven seconds of CPU,
which is several times the price of the load."""
_SMALL = 16_384
"""Vocabularies below this size gain little, and so are never loaded in a thread."""
_PROOF = 1
"""The number of the proof. A change of the texts needs another number, so that earlier verdicts do not count."""
_RIVALS = 30_000
"""Approximate number of merges that are tried together with rival merges."""
_PATIENCE_S, _LOOK_S = 300.0, 1.0
"""Seconds until a proof is given up, and between two looks for the verdict of another process."""

Encode = Callable[[str], list[int]]

_log = logging.getLogger("agentrl")
BPES: WeakKeyDictionary[Any, FastBpe] = WeakKeyDictionary()


@dataclass(slots=True)
class FastBpe:
    """The fast BPE of a tokenizer. All templates with the tokenizer share the object, which does not hold the
    tokenizer."""

    name: str
    size: tuple[int, bool]
    """The constants of a tokenizer: the number of tokens, and whether special tokens are text."""
    encode: Encode | None = None
    """None: the fast BPE is off."""
    off: str = ""
    """The reason why the fast BPE is off."""
    every: int = CHECKED_EVERY
    """1 text in `every` is encoded in both ways. The text decides, so that a run repeats exactly."""
    compared: int = 0
    patience: int = 0
    """Number of characters until a thread loads the fast BPE. 0 or less: no thread will be started."""
    _starts: Lock = field(default_factory=Lock, repr=False)
    """Taken by the thread of an episode that starts the load. The lock is never released."""

    def switch_off(self, reason: str, level: int = logging.WARNING) -> None:
        """The tokenizer encodes from now on."""
        self.encode = None
        if not self.off:
            self.off = reason
            _log.log(level, "the fast BPE is off for %s, whose tokenizer encodes from now on: %s", self.name, reason)

    def wait(self, characters: int, tokenizer: Any) -> None:
        """Count the characters that the tokenizer has encoded. When the patience ends, a thread loads the fast BPE."""
        self.patience -= characters
        if self.patience <= 0 and self._starts.acquire(blocking=False):
            Thread(target=_load, args=(self, tokenizer, True), name="agentrl-fast-bpe", daemon=True).start()


def fast_encoder_of(tokenizer: Any) -> Encode:
    """`encoder_of`, which the fast BPE replaces after `PATIENCE` characters if fastokens is installed.

    If the variable is on, the fast BPE is loaded at once; the first call on a machine makes the proof: 4 to 11 seconds
    for a large vocabulary. Raises ConfigError if the variable is on and fastokens is not installed, and for a setting
    other than on and off.
    """
    reference, setting = encoder_of(tokenizer), _setting()
    if setting == "off" or not encodes_directly(tokenizer) or tokenizer.split_special_tokens:
        return reference
    if not _is_worth_it(tokenizer, setting):
        return reference
    bpe = BPES.get(tokenizer)
    if bpe is None or bpe.size != _size(tokenizer) or (setting and bpe.patience > 0):
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        bpe = BPES[tokenizer] = FastBpe(name, _size(tokenizer), patience=0 if setting else PATIENCE)
        if setting:
            _load(bpe, tokenizer)
    return _with_comparisons(tokenizer, reference, bpe)


def _is_worth_it(tokenizer: Any, setting: str) -> bool:
    installed = find_spec("fastokens") is not None
    if setting and not installed:
        raise ConfigError(f"{VARIABLE} is on, but fastokens is not installed: pip install fastokens")
    return bool(setting) or (installed and len(tokenizer) >= _SMALL)


def _with_comparisons(tokenizer: Any, reference: Encode, bpe: FastBpe) -> Encode:
    def encode(text: str) -> list[int]:
        fast = bpe.encode
        if fast is None:
            if bpe.patience > 0:
                bpe.wait(len(text), tokenizer)
            return reference(text)
        if _size(tokenizer) != bpe.size:
            bpe.switch_off("the tokenizer was changed after it was loaded")
            return reference(text)
        try:
            actual = fast(text)
        except Exception as exc:  # noqa: BLE001 - the boundary of another library: its tokenizer takes over
            bpe.switch_off(f"it fails on a text ({type(exc).__name__}: {exc})")
            return reference(text)
        if zlib.crc32(text.encode(errors="replace")) % bpe.every:
            return actual
        expected = reference(text)
        bpe.compared += 1
        if actual != expected:
            bpe.switch_off(f"it encodes {_difference(text, expected, actual)}; report this")
        return expected

    return encode


def _size(tokenizer: Any) -> tuple[int, bool]:
    return len(tokenizer), bool(tokenizer.split_special_tokens)


def _setting() -> str:
    """on, off, or empty if the variable is not set."""
    setting = os.environ.get(VARIABLE, "").lower()
    setting = {"0": "off", "1": "on"}.get(setting, setting)
    if setting not in ("", "off", "on"):
        raise ConfigError(f"{VARIABLE} is {setting!r}: set it to on or off, or unset it")
    return setting


def _load(bpe: FastBpe, tokenizer: Any, background: bool = False) -> None:
    """Load the fast BPE, or switch it off if the verdict is against it, or if no verdict can be had."""
    level = logging.INFO if background else logging.WARNING
    try:
        serialized = tokenizer.backend_tokenizer.to_str()
        if reason := _verdict(serialized, background):
            bpe.switch_off(reason, level)
        else:
            bpe.encode = reader(serialized)
    except Exception as exc:  # noqa: BLE001 - the boundary of another library, which cannot read every tokenizer
        bpe.switch_off(f"it cannot be used ({type(exc).__name__}: {exc})", level)


def reader(serialized: str) -> Encode:
    """The encoder of fastokens for a tokenizer's JSON."""
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_json_str(serialized)
    return lambda text: list(tokenizer.encode(text).ids)


def _verdict(serialized: str, background: bool) -> str:
    """The reason against the fast BPE, empty if there is none. The proof is made once a machine; other processes wait
    for the verdict. Raises an error if no proof can be made."""
    versions = f"{_PROOF}-{version('fastokens')}-{version('tokenizers')}"
    file = _folder() / f"{hashlib.sha256(serialized.encode()).hexdigest()[:32]}-{versions}.json"
    lock, deadline = file.with_suffix(".lock"), time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if file.exists():
            return str(json.loads(file.read_text(encoding="utf-8"))["off"])
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            held = try_lock(lock)
        except OSError as exc:
            if background:
                raise
            _log.warning("%s cannot be written (%s): each process proves the fast BPE anew", file.parent, exc.strerror)
            return _proved(serialized, background)
        if held is None:
            time.sleep(_LOOK_S)
            continue
        try:
            reason = _proved(serialized, background)
            with suppress(OSError):
                write_atomically(file, json.dumps({"off": reason}) + "\n")
            return reason
        finally:
            unlock(lock, held)
    raise TimeoutError(f"another process holds {lock}")


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "fast_bpe"


def _proved(serialized: str, background: bool) -> str:
    """The verdict of another process: a crash of foreign code does not end this process. Raises an error if the process
    fails."""
    command = [*(["nice"] if background else []), sys.executable, "-m", "agentrl.render.fast_bpe", str(os.getpid())]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    prover = subprocess.run(
        command,
        input=serialized,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        timeout=_PATIENCE_S,
        check=False,
    )
    if prover.returncode:
        lines = prover.stderr.splitlines() or ["without output"]
        raise RuntimeError(f"its proof ended with exit code {prover.returncode}: {lines[-1]}")
    return str(json.loads(prover.stdout)["off"])


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
    return compared(
        lambda text: list(reference.encode_batch_fast([text], add_special_tokens=False)[0].ids),
        lambda text: list(other.encode(text).ids),
        hard_texts([token["content"] for token in definition["added_tokens"]]),
    )


def compared(reference: Encode, other: Encode, texts: Sequence[str]) -> str:
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


def _end_with(parent: int) -> None:
    """End this process soon after its parent has ended, however the parent ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def main() -> None:
    """Prove the tokenizer whose JSON is on stdin. The argument is the id of the parent process."""
    Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    try:
        reason = prove(sys.stdin.read())
    except Exception as exc:  # noqa: BLE001 - the boundary of another library, which cannot read every tokenizer
        reason = f"it cannot be used ({type(exc).__name__}: {exc})"
    sys.stdout.write(json.dumps({"off": reason}))


if __name__ == "__main__":
    main()
