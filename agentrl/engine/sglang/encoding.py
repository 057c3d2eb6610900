"""The JSON of growing conversations, without writing old tokens again."""

from __future__ import annotations

import json
import operator
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError, RequestError


@dataclass(slots=True)
class _Sent:
    """What a session has sent: its ids, and their JSON in pieces, each but the first with its leading comma."""

    ids: array[int] = field(default_factory=lambda: array("i"))
    pieces: list[bytes] = field(default_factory=list)
    at: float = 0.0

    def extend(self, ids: array[int], vocab_size: int | None) -> bool:
        """Take over the ids after those known; False if the known ones are not a prefix of `ids`."""
        new = ids[len(self.ids) :]
        self.ids += new
        if self.ids != ids:
            return False
        if new:
            _check(new, vocab_size)
            self.pieces.append((b", " if self.pieces else b"") + json.dumps(new.tolist())[1:-1].encode())
        return True


class HistoryEncoder:
    """`json.dumps(input_ids)` at the cost of the new tokens. Safe to share between threads.

    A turn of an agent adds some hundred tokens to some ten thousand, but SGLang's request holds them all, and
    `json.dumps` spends 80 ns on each: 6 ms of the event loop for 70,000 tokens, on every turn of every episode. So the
    bytes of what a session has sent are kept, and only what is new is encoded. Comparing what is old costs under a
    nanosecond a token, since a trajectory's ids are an array and are compared as such. The comparison is complete, so a
    session that was restarted or rewritten is encoded afresh and never wrongly.

    Memory is 11 bytes a token. The least recently used sessions go when `max_tokens` is exceeded, and those unused for
    `idle_s` seconds. With `vocab_size`, new ids are held against it.
    """

    def __init__(self, *, vocab_size: int | None = None, max_tokens: int = 8_000_000, idle_s: float = 600.0) -> None:
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._idle_s = idle_s
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def encode(self, session_id: str, input_ids: Sequence[int]) -> list[bytes]:
        """The JSON array of `input_ids` without its brackets, in pieces to join. Nothing is kept for the session "".

        Raises ConfigError for what is no token id, RequestError for one outside the vocabulary.
        """
        ids = _token_ids(input_ids)
        with self._lock:
            sent = self._forget(session_id) or _Sent()
            if not sent.extend(ids, self._vocab_size):
                sent = _Sent()
                sent.extend(ids, self._vocab_size)
            if session_id:
                sent.at = time.monotonic()
                self._sent[session_id] = sent
                self._tokens += len(ids)
                self._trim()
            return list(sent.pieces)

    def __len__(self) -> int:
        """How many sessions are kept."""
        return len(self._sent)

    def _trim(self) -> None:
        horizon = time.monotonic() - self._idle_s
        while self._sent:
            session_id, oldest = next(iter(self._sent.items()))
            if self._tokens <= self._max_tokens and oldest.at >= horizon:
                return
            self._forget(session_id)

    def _forget(self, session_id: str) -> _Sent | None:
        sent = self._sent.pop(session_id, None)
        if sent is not None:
            self._tokens -= len(sent.ids)
        return sent


def _check(ids: array[int], vocab_size: int | None) -> None:
    """SGLang itself does not, and its worker may die of an id that its embedding does not have."""
    if vocab_size is not None and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestError(
            f"the prompt's token id {wrong} is outside the vocabulary of {vocab_size}: tokenizer mismatch?"
        )


def _token_ids(ids: Sequence[Any]) -> array[int]:
    """As an array of int32, which a trajectory has already. Numbers of numpy and torch become plain ones."""
    if isinstance(ids, array) and ids.typecode == "i":
        return ids
    try:
        return array("i", ids)
    except (TypeError, OverflowError) as exc:
        i, token = next((i, token) for i, token in enumerate(ids) if not _is_token_id(token))
        raise ConfigError(f"input_ids[{i}] is {token!r}, no token id") from exc


def _is_token_id(token: Any) -> bool:
    try:
        return 0 <= operator.index(token) < 1 << 31
    except TypeError:
        return False
