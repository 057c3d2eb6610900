"""The JSON of growing conversations, without writing old tokens again."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Sent:
    ids: list[int]
    text: bytes
    at: float


class HistoryEncoder:
    """`json.dumps(input_ids)` at the cost of the new tokens. Safe to share between threads.

    A turn of an agent adds some hundred tokens to some ten thousand, but SGLang's request holds them all, and
    `json.dumps` spends 80 ns on each: 6 ms of the event loop for 70,000 tokens, on every turn of every episode. So the
    bytes of what a session has sent are kept, and only what is new is encoded. Copying and comparing what is old costs
    1-3 ns a token: lists that share their ints, as a growing trajectory's do, are compared by identity. The comparison
    is complete, so a session that was restarted or rewritten is encoded afresh and never wrongly.

    Memory is 15 bytes a token. The least recently used sessions go when `max_tokens` is exceeded, and those unused for
    `idle_s` seconds.
    """

    def __init__(self, *, max_tokens: int = 8_000_000, idle_s: float = 600.0) -> None:
        self._max_tokens = max_tokens
        self._idle_s = idle_s
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def encode(self, session_id: str, input_ids: Sequence[int]) -> bytes:
        """The JSON array of `input_ids`, without its brackets. Nothing is kept for the session ""."""
        ids = list(input_ids)
        if not session_id:
            return _items(ids)
        with self._lock:
            sent = self._forget(session_id)
            if sent is not None and sent.ids and ids[: len(sent.ids)] == sent.ids:
                new = ids[len(sent.ids) :]
                text = sent.text + b", " + _items(new) if new else sent.text
            else:
                text = _items(ids)
            self._sent[session_id] = _Sent(ids, text, time.monotonic())
            self._tokens += len(ids)
            self._trim()
        return text

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


def _items(ids: list[int]) -> bytes:
    return json.dumps(ids)[1:-1].encode()
