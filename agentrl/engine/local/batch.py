"""The rows of a running batch: admission, one decode step for all, and what is kept for a session's next turn."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from agentrl.engine.base import Generation
from agentrl.engine.local.kv_cache import SlotCache
from agentrl.engine.local.sampling import Sampling, draw
from agentrl.types import FinishReason

_PREFILL_TOKENS = 4096
"""Padded tokens of one prefill pass: more do not stay in a CPU's caches (benchmarks/bench_local_engine.py)."""


@dataclass(slots=True, eq=False)
class Request:
    """One call of `generate`, from waiting to answered. Fields below `future` belong to the worker thread."""

    input_ids: Sequence[int]
    sampling: Sampling
    session_id: str
    rid: str
    future: Future[Generation] = field(default_factory=Future)
    aborted: bool = False
    """Set by `abort`, from any thread."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and response."""
    log_probs: list[float] = field(default_factory=list)
    cached_tokens: int = 0

    def content(self) -> tuple[Any, ...]:
        """An order of requests that does not depend on when they came, nor on random ids unless all else is equal."""
        return tuple(self.input_ids), self.sampling.seed, self.session_id, self.rid


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has left the batch, and why."""

    request: Request
    reason: FinishReason
    matched: int | str | None = None


@dataclass(slots=True)
class _Slot:
    """Whose tokens lie in a slot of the cache: a running request's, or those that a session may continue."""

    session_id: str = ""
    tokens: Sequence[int] = ()
    used: int = 0
    """When its session last left it, as a count; the smallest is taken first. 0: nobody will ask for it."""


class Batch:
    """Slots 0..len(requests) are running; the slots after them are free or kept for a session's next turn.

    A prompt is prefilled up to its last token; that token starts the first decode step, which is the same for all rows.
    Not thread-safe: one thread admits and steps.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_batch: int, max_context: int, eos: frozenset[int]) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._max_batch, self._max_context, self._eos = max_batch, max_context, eos
        self._cache = SlotCache()
        self._slots: list[_Slot] = []
        self._clock = 0
        self.requests: list[Request] = []

    @property
    def room(self) -> int:
        return self._max_batch - len(self.requests)

    def forget(self) -> None:
        """Drop what is kept for sessions; running rows go on, and leave nothing."""
        del self._slots[len(self.requests) :]
        for slot in self._slots:
            slot.session_id = ""

    def clear(self) -> None:
        """Drop everything, memory included."""
        self.requests.clear()
        self._slots.clear()
        self._cache = SlotCache()

    @torch.inference_mode()
    def admit(self, requests: Sequence[Request]) -> None:
        """Take in up to `room` requests and prefill them. Where they sit depends on their content and on the slots."""
        kept = {slot.session_id: i for i, slot in enumerate(self._slots) if slot.session_id and i >= len(self.requests)}
        places = {request: kept.get(request.session_id, self._max_batch) for request in requests}
        first = len(self.requests)
        for request in sorted(requests, key=lambda r: (places[r], len(r.input_ids))):
            self._seat(request)
        self._prefill(first)

    def _seat(self, request: Request) -> None:
        """Give a request the slot after the running ones, with the keys and values its session left, if any."""
        seat = len(self.requests)
        found = self._find(request.session_id)
        if found is None:
            found = self._free()
        self._exchange(found, seat)
        slot = self._slots[seat]
        if request.session_id and slot.session_id == request.session_id:
            request.cached_tokens = min(_common_prefix(slot.tokens, request.input_ids), len(request.input_ids) - 1)
        request.tokens = list(request.input_ids)
        slot.session_id, slot.tokens = request.session_id, request.tokens
        self.requests.append(request)

    def _find(self, session_id: str) -> int | None:
        kept = range(len(self.requests), len(self._slots))
        return next((i for i in kept if session_id and self._slots[i].session_id == session_id), None)

    def _free(self) -> int:
        """A slot that nobody will ask for, else a new one, else the least recently used."""
        left = range(len(self.requests), len(self._slots))
        oldest = min(left, key=lambda i: self._slots[i].used, default=None)
        if oldest is None or (self._slots[oldest].used and len(self._slots) < self._max_batch):
            self._slots.append(_Slot())
            self._cache.reserve(len(self._slots), 0)
            return len(self._slots) - 1
        self._slots[oldest] = _Slot()
        return oldest

    def _exchange(self, a: int, b: int) -> None:
        if a != b:
            columns = max(len(self._slots[a].tokens), len(self._slots[b].tokens))
            self._cache.exchange(a, b, columns)
            self._slots[a], self._slots[b] = self._slots[b], self._slots[a]

    def _prefill(self, first: int) -> None:
        """Compute the prompts of rows from `first` on, as many rows a pass as the token budget holds."""
        while first < len(self.requests):
            stop, width = first, 0
            while stop < len(self.requests):
                request = self.requests[stop]
                wider = max(width, len(request.input_ids) - 1 - request.cached_tokens)
                if stop > first and wider * (stop + 1 - first) > _PREFILL_TOKENS:
                    break
                stop, width = stop + 1, wider
            if width:
                rows = self.requests[first:stop]
                starts = [row.cached_tokens for row in rows]
                new = [list(row.input_ids[row.cached_tokens : -1]) for row in rows]
                padded = [ids + [0] * (width - len(ids)) for ids in new]
                end = max(len(row.input_ids) - 1 for row in rows)
                for offset in range(0, width, _PREFILL_TOKENS):
                    ids = [row_ids[offset : offset + _PREFILL_TOKENS] for row_ids in padded]
                    self._forward(first, ids, [start + offset for start in starts], end)
            first = stop

    def _forward(self, first: int, ids: list[list[int]], starts: list[int], end: int) -> torch.Tensor:
        """Run rows first.. over `ids` (one width), row r at positions starts[r]...; the logits of the last column.

        What padding writes lies behind its row's last token, where it is overwritten before it is looked at.
        """
        device, width = self._model.device, len(ids[0])
        self._cache.reserve(len(self._slots), max(starts) + width)
        columns = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        dtype = self._model.dtype
        hidden = torch.arange(end, device=device) > columns[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, torch.finfo(dtype).min)
        logits: torch.Tensor = self._model(
            input_ids=torch.tensor(ids, device=device),
            position_ids=columns.clamp(max=self._max_context - 1),
            attention_mask=mask[:, None],
            past_key_values=self._cache.select(first, first + len(ids), columns, end),
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1]

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Sample one token for each row; answers the rows that are finished by it, in the order of their slots."""
        rows = self.requests
        starts = [len(row.tokens) - 1 for row in rows]
        logits = self._forward(0, [row.tokens[-1:] for row in rows], starts, max(starts) + 1)
        tokens, log_probs = draw(logits, [row.sampling for row in rows], [start + 1 for start in starts])
        finished = []
        for row, token, log_prob in zip(rows, tokens, log_probs, strict=True):
            row.tokens.append(token)
            row.log_probs.append(log_prob)
            if done := self._judge(row):
                finished.append(done)
        for done in finished:
            self.remove(done.request)
        return finished

    def _judge(self, row: Request) -> Finished | None:
        token, sampling = row.tokens[-1], row.sampling
        # In the order in which SGLang judges.
        if sampling.stop and (matched := self._stop_string(row)):
            return Finished(row, "stop", matched)
        if token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos):
            return Finished(row, "stop", token)
        at_limit = len(row.log_probs) == sampling.max_new_tokens or len(row.tokens) == self._max_context
        return Finished(row, "length") if at_limit else None

    def _stop_string(self, row: Request) -> str | None:
        """The stop string that the last token completed. A token is at least a byte, so the tail is long enough."""
        longest = max(len(stop.encode()) for stop in row.sampling.stop)
        tail = row.tokens[max(len(row.input_ids), len(row.tokens) - longest - 4) :]
        text = self._tokenizer.decode(tail, clean_up_tokenization_spaces=False)
        return next((stop for stop in row.sampling.stop if stop in text), None)

    @torch.inference_mode()
    def remove(self, request: Request) -> None:
        """Take a row out. Its keys and values stay for its session, in a slot behind the running ones."""
        seat, last = self.requests.index(request), len(self.requests) - 1
        self._clock += 1
        slot = self._slots[seat]
        slot.tokens, slot.used = request.tokens[:-1], self._clock if slot.session_id else 0
        self._exchange(seat, last)
        self.requests[seat] = self.requests[last]
        self.requests.pop()


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
