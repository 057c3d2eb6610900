"""The rows of a running batch: admission, decode steps, and the cache for a session's next turn."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agentrl.engine.base import GRAMMAR_CHANGED
from agentrl.engine.local.grammar import allowed
from agentrl.engine.local.images import ImageInputs, common_images, pieces
from agentrl.engine.local.kv_cache import SMALL_BYTES, CacheBlock, Remembered, run
from agentrl.engine.local.request import Failed, Finished, GenerateRequest, Outcome
from agentrl.engine.local.sampling import draw, exclude
from agentrl.errors import EngineError, RequestError
from agentrl.types import RenderedImage

log = logging.getLogger(__name__)

_PREFILL_TOKENS = 4096
"""The most tokens, padding included, of a prefill pass. More tokens would not fit into a CPU's caches
(benchmarks/bench_local_engine.py)."""


@dataclass(slots=True)
class _Group:
    """The rows of a memory block, which are computed together."""

    block: CacheBlock
    rows: list[GenerateRequest] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _KeptSession:
    """Tokens of a session with their keys and values, for the session's next turn."""

    tokens: Sequence[int]
    memory: Remembered
    media: Sequence[RenderedImage]

    def shared(self, request: GenerateRequest) -> int:
        """The number of first tokens that the session shares with a request. Images among them must be equal, too."""
        return common_images(_common_prefix(self.tokens, request.input_ids), request.media, self.media)


class Batch:
    """The running rows (requests). All rows are in a single block of memory, or in a block for each length class if
    their lengths differ much.

    A prompt is prefilled up to the last token. The last token starts the first decode step, so decode steps are the
    same for all rows. If a pass of many rows raises an exception, each row is computed alone. A row that also fails
    alone returns `Failed`. Not thread-safe: a single thread calls all methods.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int,
        max_context: int,
        eos: frozenset[int],
        token_bytes: int,
        images: ImageInputs | None = None,
        forbidden: Sequence[int] = (),
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._max_batch, self._max_context, self._eos = max_batch, max_context, eos
        self._token_bytes = token_bytes
        self._images, self._forbidden = images, list(forbidden)
        self.groups: dict[int, _Group] = {}
        self._split = False
        self.sessions: dict[str, _KeptSession] = {}  # the least recently used first
        self._forgetting: set[GenerateRequest] = set()
        """Running rows whose keys and values were computed with old weights. Such keys and values are not stored at the
        end."""

    @property
    def requests(self) -> list[GenerateRequest]:
        return [row for group in self.groups.values() for row in group.rows]

    @property
    def room(self) -> int:
        return self._max_batch - len(self.requests)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the keys and values of running rows and stored sessions."""
        stored = sum(part.nbytes for stored in self.sessions.values() for part in stored.memory)
        return stored + sum(group.block.bytes for group in self.groups.values())

    def forget(self) -> None:
        """Drop the stored sessions. Running rows continue, but are not stored at the end."""
        self.sessions.clear()
        self._forgetting.update(self.requests)

    def clear(self) -> None:
        """Remove all rows and stored sessions, and free the memory."""
        self.groups.clear()
        self.sessions.clear()
        self._forgetting.clear()

    # Admission

    @torch.inference_mode()
    def admit(self, requests: Sequence[GenerateRequest]) -> list[Failed]:
        """Admit up to `room` requests and prefill them. Returns the failed requests."""
        sessions = {request: self.sessions.pop(request.session_id, None) for request in requests}
        for request, session in sessions.items():
            request.tokens = list(request.input_ids)
            if session is not None:
                request.cached_tokens = request.computed = min(session.shared(request), len(request.input_ids) - 1)
        while len(self.sessions) > self.room - len(requests):
            del self.sessions[next(iter(self.sessions))]
        new = sorted(requests, key=lambda row: len(row.input_ids) - row.computed)
        return self._enter(new, sessions)

    def _enter(
        self, new: Sequence[GenerateRequest], sessions: dict[GenerateRequest, _KeptSession | None]
    ) -> list[Failed]:
        try:
            self.arrange(new)
        except RuntimeError as exc:  # too little memory: find the requests at fault
            if len(new) == 1:
                return [_failed(new[0], exc)]
            return [failed for row in new for failed in self._enter([row], sessions)]
        firsts = {key: len(group.rows) for key, group in self.groups.items()}
        for row in new:
            group = self.groups[self._key(row)]
            group.rows.append(row)
            if session := sessions[row]:
                group.block.copy_in(len(group.rows) - 1, session.memory, row.computed)
        failed = [failed for key, first in firsts.items() for failed in self._prefill(self.groups[key], first)]
        for failure in failed:
            self.remove(failure.request, failed=True)
        return failed

    def _prefill(self, group: _Group, first: int) -> Iterator[Failed]:
        """Compute the prompts of rows from `first` on. A pass takes as many rows as the token budget allows."""
        while first < len(group.rows):
            stop, width = first, 0
            while stop < len(group.rows):
                row = group.rows[stop]
                wider = max(width, len(row.input_ids) - 1 - row.computed)
                if stop > first and wider * (stop + 1 - first) > _PREFILL_TOKENS:
                    break
                stop, width = stop + 1, wider
            if width:
                yield from self._prefill_pass(group, first, stop, width)
            first = stop

    def _prefill_pass(self, group: _Group, first: int, stop: int, width: int) -> Iterator[Failed]:
        rows = group.rows[first:stop]
        starts, end = [row.computed for row in rows], max(len(row.input_ids) - 1 for row in rows)
        new = [row.input_ids[row.computed : -1] for row in rows]
        padded = [ids + [0] * (width - len(ids)) for ids in new]
        try:
            for offset, until in pieces(rows, width, _PREFILL_TOKENS):
                ids = [row_ids[offset:until] for row_ids in padded]
                starts_of_piece = [start + offset for start in starts]
                self._run(group, first, rows, ids, starts_of_piece, end)
        except Exception as exc:  # noqa: BLE001 - the model's own code may raise any error
            if len(rows) == 1:
                yield _failed(rows[0], exc)
                return
            log.warning("prefilling %d prompts failed (%s); one by one now", len(rows), _words(exc))
            for seat in range(first, stop):
                yield from self._prefill_pass(group, seat, seat + 1, len(new[seat - first]))
            return
        for row in rows:
            row.computed = len(row.input_ids) - 1

    def _run(
        self,
        group: _Group,
        first: int,
        rows: Sequence[GenerateRequest],
        ids: list[list[int]],
        starts: list[int],
        end: int,
    ) -> torch.Tensor:
        """The logits of each row's last token. Tokens that stand for media get logits of -inf."""
        images = {} if self._images is None else self._images.of(rows, starts, ids)
        logits = run(self._model, group.block, first, ids, starts, end, self._max_context, images)
        if self._forbidden:
            logits[:, self._forbidden] = -math.inf
        return logits

    # Memory

    def _key(self, row: GenerateRequest) -> int:
        """The key of a row's group: 0, or the power of two with room for the row's tokens."""
        return max(64, 1 << (len(row.tokens) - 1).bit_length()) if self._split else 0

    def arrange(self, new: Sequence[GenerateRequest] = ()) -> None:
        """Move each row to the block of its length class, and make room for the `new` rows.

        A single block for all rows is fastest, but is padded to the longest row. The block is split if padding would
        more than double the memory.
        """
        rows = [*self.requests, *new]
        longest, total = max(len(row.tokens) for row in rows), sum(len(row.tokens) for row in rows)
        padded = len(rows) * longest
        self._split = padded * self._token_bytes > SMALL_BYTES and padded > (1.5 if self._split else 2.0) * total
        self._regroup()
        sizes = {key: [len(row.tokens) for row in group.rows] for key, group in self.groups.items()}
        for row in new:
            sizes.setdefault(self._key(row), []).append(len(row.tokens))
        for key, lengths in sizes.items():
            if lengths:
                self._group(key).block.fit(len(lengths), max(lengths), self._max_batch)
        self._drop_empty({key for key, lengths in sizes.items() if lengths})

    def _regroup(self) -> None:
        for key, group in list(self.groups.items()):
            for row in [row for row in group.rows if self._key(row) != key]:
                target = self._group(self._key(row))
                lengths = [len(row.tokens), *(len(other.tokens) for other in target.rows)]
                target.block.fit(len(lengths), max(lengths), self._max_batch)
                memory = group.block.copy_out(group.rows.index(row), row.computed)
                target.block.copy_in(len(target.rows), memory, row.computed)
                self._leave(group, row)
                target.rows.append(row)

    def _group(self, key: int) -> _Group:
        return self.groups.setdefault(key, _Group(CacheBlock(self._token_bytes)))

    def _leave(self, group: _Group, row: GenerateRequest) -> None:
        """Remove a row from a group. The last row of the group moves to its place."""
        seat, last = group.rows.index(row), len(group.rows) - 1
        if seat != last:
            group.block.move(last, seat, group.rows[last].computed)
            group.rows[seat] = group.rows[last]
        group.rows.pop()

    def _drop_empty(self, needed: set[int]) -> None:
        """Free blocks without rows, except the block for the next requests."""
        for key, group in list(self.groups.items()):
            if key not in needed and not group.rows and (key or self._split or group.block.bytes > SMALL_BYTES):
                del self.groups[key]

    # Decoding

    @torch.inference_mode()
    def step(self) -> list[Outcome]:
        """Sample a token for each row. Returns the finished and failed rows."""
        try:
            self.arrange()
        except RuntimeError as exc:  # no memory for the longest row to grow
            outcomes: list[Outcome] = [_failed(max(self.requests, key=lambda row: len(row.tokens)), exc)]
        else:
            groups = self.groups.values()
            outcomes = [
                outcome_of_row for group in groups for outcome_of_row in self._sample(group, 0, len(group.rows))
            ]
        for outcome in outcomes:
            self.remove(outcome.request, failed=isinstance(outcome, Failed))
        return outcomes

    def _sample(self, group: _Group, first: int, stop: int) -> Iterator[Outcome]:
        """Sample a token for each of the rows first..stop."""
        rows = group.rows[first:stop]
        if not rows:
            return
        starts = [row.computed for row in rows]
        ids = [row.tokens[-1:] for row in rows]
        try:
            logits = self._run(group, first, rows, ids, starts, max(starts) + 1)
            rises = _obey(logits, rows)
            tokens, log_probs = draw(logits, [row.sampling for row in rows], [start + 1 for start in starts])
        except Exception as exc:  # noqa: BLE001 - the model's own code may raise any error
            if len(rows) == 1:
                yield _failed(rows[0], exc)
                return
            log.warning("a forward pass of %d rows failed (%s); one by one now", len(rows), _words(exc))
            for seat in range(first, stop):
                yield from self._sample(group, seat, seat + 1)
            return
        for row, token, log_prob, rise in zip(rows, tokens, log_probs, rises, strict=True):
            row.computed += 1
            if outcome := self._take(row, token, log_prob, rise):
                yield outcome

    def _take(self, row: GenerateRequest, token: int, log_prob: float, rise: float) -> Outcome | None:
        if rise == math.inf:
            return Failed(
                row, RequestError("no token of this model's vocabulary can go on under the request's grammar")
            )
        if not math.isfinite(log_prob):
            return Failed(row, EngineError("the model's logits are not finite: are its weights damaged, or NaN?"))
        row.tokens.append(token)
        row.log_probs.append(log_prob)
        try:
            if row.grammar is not None:
                row.constrained.append(not rise < GRAMMAR_CHANGED)
                row.grammar.take(token)
            return self._judge(row)
        except Exception as exc:  # noqa: BLE001 - the tokenizer's own code, on tokens of this row only
            return _failed(row, exc)

    def _judge(self, row: GenerateRequest) -> Finished | None:
        token, sampling = row.tokens[-1], row.sampling
        # SGLang checks in this order.
        if sampling.stop and (matched := self._stop_string(row)):
            return Finished(row, "stop", matched)
        if token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos):
            return Finished(row, "stop", token)
        if row.grammar is not None and row.grammar.ended:
            return Finished(row, "stop", token)
        at_limit = len(row.log_probs) == sampling.max_new_tokens or len(row.tokens) == self._max_context
        return Finished(row, "length") if at_limit else None

    def _stop_string(self, row: GenerateRequest) -> str | None:
        """The stop string that the last token has completed, or None. A token has at least one byte, so the decoded
        tail is long enough."""
        longest = max(len(stop.encode()) for stop in row.sampling.stop)
        tail = row.tokens[max(len(row.input_ids), len(row.tokens) - longest - 4) :]
        text = self._tokenizer.decode(tail, clean_up_tokenization_spaces=False)
        return next((stop for stop in row.sampling.stop if stop in text), None)

    @torch.inference_mode()
    def remove(self, request: GenerateRequest, *, failed: bool = False) -> None:
        """Remove a row. The keys and values of the row are stored for the session, unless the row failed or the weights
        have changed."""
        group = next(group for group in self.groups.values() if request in group.rows)
        seat = group.rows.index(request)
        if failed:
            group.block.wipe(seat)
        elif request.session_id and request not in self._forgetting:
            self.sessions.pop(request.session_id, None)
            memory = group.block.copy_out(seat, request.computed)
            self.sessions[request.session_id] = _KeptSession(request.tokens[: request.computed], memory, request.media)
        self._forgetting.discard(request)
        self._leave(group, request)
        self._drop_empty(set())


def _obey(logits: torch.Tensor, rows: Sequence[GenerateRequest]) -> list[float]:
    """Exclude tokens by the grammars of rows. Returns for each row how much the log-probs of the remaining tokens
    rise."""
    rises = [0.0] * len(rows)
    if any(row.grammar is not None for row in rows):
        grammar_rows, free = allowed([row.grammar for row in rows], logits)
        rises_of_rows = exclude(logits, grammar_rows, free, [row.sampling for row in rows]) if grammar_rows else []
        for row, rise in zip(grammar_rows, rises_of_rows, strict=True):
            rises[row] = rise
    return rises


def _failed(request: GenerateRequest, exc: Exception) -> Failed:
    if isinstance(exc, RequestError):
        return Failed(request, exc)
    error = EngineError(f"a forward pass failed: {_words(exc)}")
    error.__cause__ = exc
    return Failed(request, error)


def _words(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
