"""Encodes growing conversations as JSON without encoding earlier tokens again."""

from __future__ import annotations

import operator
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from agentrl.errors import ConfigError, RequestError
from agentrl.trajectory.arrays import TokenIds


@dataclass(slots=True)
class _Sent:
    """The ids that a session has sent, and their JSON in pieces. All pieces but the first begin with a comma."""

    ids: array[int] = field(default_factory=lambda: array("i"))
    """The trajectory's array itself, or a copy of the ids."""
    count: int = 0
    """The number of `ids` that were sent."""
    pieces: list[bytes] = field(default_factory=list)
    used_at: float = 0.0

    def extend(self, ids: array[int], vocab_size: int | None) -> bool:
        """Add the new ids. Returns False if the ids sent so far are not the beginning of `ids`."""
        count = self.count
        if ids is not self.ids and ids[:count] != self.ids[:count]:
            return False
        if new := ids[count:]:
            _check(new, vocab_size)
            self.pieces.append((b"," if self.pieces else b"") + _json(new))
        self.ids, self.count = ids if isinstance(ids, TokenIds) else ids[:], len(ids)
        return True


class HistoryEncoder:
    """Encodes `input_ids` as JSON, at the cost of the new tokens alone. Safe to share between threads.

    A turn of an agent adds some hundred tokens to some ten thousand, but a request to SGLang contains all tokens.
    `json.dumps` spends 80 ns on each token: 6 ms of the event loop for 70,000 tokens, on every turn of every episode.
    So the encoder stores the bytes of each session and encodes only new ids. A trajectory's ids only grow (`TokenIds`),
    so an array that was sent before needs no comparison. Any other sequence is compared with a copy of the ids sent
    before. So a session that was restarted or rewritten is encoded again in full, and never wrongly.

    A token takes 6 bytes of memory, and 4 more for the copy. Sessions are dropped by `forget`, and after `idle_s`
    seconds without use. Above `max_tokens`, the least recently used sessions are dropped. With `vocab_size`, new ids
    are checked against the vocabulary.
    """

    def __init__(self, *, vocab_size: int | None = None, max_tokens: int = 8_000_000, idle_s: float = 600.0) -> None:
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._idle_s = idle_s
        self.sent: OrderedDict[str, _Sent] = OrderedDict()
        self.tokens = 0
        self._lock = threading.Lock()

    def encode(self, session_id: str, input_ids: Sequence[int]) -> list[bytes]:
        """The JSON array of `input_ids` without the brackets, in pieces to join. The session "" is not stored.

        Raises ConfigError for a value that is not a token id, RequestError for an id outside the vocabulary.
        """
        ids = _token_ids(input_ids)
        with self._lock:
            sent = self._pop(session_id) or _Sent()
            if not sent.extend(ids, self._vocab_size):
                sent = _Sent()
                sent.extend(ids, self._vocab_size)
            if session_id:
                sent.used_at = time.monotonic()
                self.sent[session_id] = sent
                self.tokens += sent.count
                self._trim()
            return list(sent.pieces)

    def forget(self, session_id: str) -> None:
        """Delete the stored ids of an ended session."""
        with self._lock:
            self._pop(session_id)

    def __len__(self) -> int:
        """The number of stored sessions."""
        return len(self.sent)

    def _trim(self) -> None:
        horizon = time.monotonic() - self._idle_s
        while self.sent:
            session_id, oldest = next(iter(self.sent.items()))
            if self.tokens <= self._max_tokens and oldest.used_at >= horizon:
                return
            self._pop(session_id)

    def _pop(self, session_id: str) -> _Sent | None:
        sent = self.sent.pop(session_id, None)
        if sent is not None:
            self.tokens -= sent.count
        return sent


def _check(ids: array[int], vocab_size: int | None) -> None:
    """Raises RequestError for ids outside the vocabulary. SGLang does not check ids, and such an id may kill the
    worker."""
    if vocab_size is not None and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestError(
            f"the prompt's token id {wrong} is outside the vocabulary of {vocab_size}: tokenizer mismatch?"
        )


def _json(ids: array[int]) -> bytes:
    """The ids as text, separated by commas. pydantic's writer takes a tenth of the time of `json.dumps`."""
    return to_json(ids.tolist())[1:-1]


def _token_ids(ids: Sequence[Any]) -> array[int]:
    """The ids as an array of int32. A trajectory's ids are already such an array. Numbers of numpy and torch are
    converted.
    """
    if isinstance(ids, array) and ids.typecode == "i":
        return ids
    try:
        return array("i", ids)
    except (TypeError, OverflowError) as exc:
        i, token = next((i, token) for i, token in enumerate(ids) if not _is_token_id(token))
        raise ConfigError(f"input_ids[{i}] is {token!r}, not a token id") from exc


def _is_token_id(token: Any) -> bool:
    try:
        return 0 <= operator.index(token) < 1 << 31
    except TypeError:
        return False
