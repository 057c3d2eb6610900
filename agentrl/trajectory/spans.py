"""Data about a trajectory's tokens: spans of tokens with the same origin, turns, and the ledger, which counts every
token."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Self, TypeAlias, overload

from agentrl.errors import LedgerError
from agentrl.plain import text, to_json_lossy
from agentrl.types import JSON, FinishReason, Generation

Source: TypeAlias = Literal["sampled", "observation", "scaffold"]
Author: TypeAlias = Literal["model", "env", "template"]
SpanType: TypeAlias = Literal["sampled", "close", "observation", "prompt"]
MaskReason: TypeAlias = Literal[
    "malformed",
    "off_policy",
    "env_failure",
    "overlong",
    "host",
    "dropped",
    "side",
    "undelivered",
    "constrained",
    "replaced",
]
"""Reasons for masking sampled tokens. malformed: a tool call of the turn is unreadable. off_policy: the weights were
stale. env_failure: the environment or the engine broke. overlong: the episode exceeded a limit. host: the host demanded
the mask. replaced: another group replaced the episode's group, because all episodes of the group had the same reward.

For an agent with its own turns: dropped: the agent asked for the reply again. side: the reply is outside of the main
conversation. undelivered: the client never got the reply. constrained: the client demanded a form of the answer, and
the grammar excluded other tokens at this position.
"""

_SOURCES: Mapping[SpanType, Source] = {
    "sampled": "sampled",
    "observation": "observation",
    "close": "scaffold",
    "prompt": "scaffold",
}
_AUTHORS: Mapping[Source, Author] = {"sampled": "model", "observation": "env", "scaffold": "template"}


@dataclass(frozen=True, slots=True)
class Span:
    """`response[start:stop]`: neighbouring tokens of the same origin. Spans of the kinds `close` (after a turn) and
    `prompt` (before a turn) were written by the template; their source is `scaffold`."""

    start: int
    stop: int
    turn: int
    kind: SpanType
    weight_version: str | None = None
    masked: MaskReason | None = None
    """The reason for masking the sampled tokens; None for trained tokens, and for tokens that were not sampled."""

    @property
    def source(self) -> Source:
        return _SOURCES[self.kind]

    @property
    def trained(self) -> bool:
        return self.kind == "sampled" and self.masked is None

    @property
    def author(self) -> Author:
        return _AUTHORS[self.source]


_Mark: TypeAlias = tuple[SpanType, str | None, MaskReason | None]
"""Kind of a span, version of the weights, and the reason for a mask."""


class Spans(Sequence[Span]):
    """A list of adjacent spans, stored in an array: 12 bytes a span, where a Span object takes 140.

    Each span begins at the end of the span before. `add` and the constructor raise LedgerError for a gap or an empty
    span.
    """

    __slots__ = ("_marks", "_rows")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._rows = array("i")
        """Three numbers for each span: the end, the turn, and the index in `_marks`."""
        self._marks: list[_Mark] = []
        for span in spans:
            if span.start != self.stop:
                raise LedgerError(f"spans overlap or leave a gap at {self.stop}")
            self.add(span.stop, span.turn, span.kind, span.weight_version, span.masked)

    @property
    def stop(self) -> int:
        """The end of the last span; 0 without spans."""
        return self._rows[-3] if self._rows else 0

    def add(
        self, stop: int, turn: int, kind: SpanType, version: str | None = None, masked: MaskReason | None = None
    ) -> None:
        """Append a span from the end of the last span to `stop`."""
        rows = self._rows
        if stop <= (rows[-3] if rows else 0):
            raise LedgerError(f"a span that begins at {self.stop} cannot end at {stop}")
        rows.extend((stop, turn, self._mark_index((kind, version, masked))))

    def __len__(self) -> int:
        return len(self._rows) // 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        places = range(len(self))[index]
        return [self._span(place) for place in places] if isinstance(places, range) else self._span(places)

    def __iter__(self) -> Iterator[Span]:
        start, rows, spans = 0, iter(self._rows), list[Span]()
        for stop, turn, mark in zip(rows, rows, rows, strict=True):
            spans.append(Span(start, stop, turn, *self._marks[mark]))
            start = stop
        return iter(spans)

    def sampled_in(self, turn: int) -> list[tuple[int, int]]:
        """Start and stop of each sampled span of a turn."""
        return [(start, self._rows[row]) for row, start in self._rows_of(turn) if self._mark(row)[0] == "sampled"]

    def sampled_by_turn(self) -> dict[int, list[tuple[int, int]]]:
        """Turn -> `sampled_in` of the turn, for each turn that has sampled spans."""
        spans, start = dict[int, list[tuple[int, int]]](), 0
        for row in range(0, len(self._rows), 3):
            if self._mark(row)[0] == "sampled":
                spans.setdefault(self._rows[row + 1], []).append((start, self._rows[row]))
            start = self._rows[row]
        return spans

    def mask(self, turn: int, reason: MaskReason) -> int:
        """Mask the trained spans of a turn. Returns the number of tokens in these spans."""
        count = 0
        for row, start in self._rows_of(turn):
            kind, version, masked = self._mark(row)
            if kind == "sampled" and masked is None:
                self._rows[row + 2] = self._mark_index((kind, version, reason))
                count += self._rows[row] - start
        return count

    def _rows_of(self, turn: int) -> Iterator[tuple[int, int]]:
        """For each span of a turn, the index in `_rows` and the start. Spans are sorted by turn."""
        rows = self._rows
        first = bisect_left(range(len(self)), turn, key=lambda span: rows[3 * span + 1])
        for row in range(3 * first, len(rows), 3):
            if rows[row + 1] != turn:
                break
            yield row, rows[row - 3] if row else 0

    def _mark(self, row: int) -> _Mark:
        return self._marks[self._rows[row + 2]]

    def _mark_index(self, mark: _Mark) -> int:
        if mark not in self._marks:
            self._marks.append(mark)
        return self._marks.index(mark)

    def _span(self, place: int) -> Span:
        stop, turn, mark = self._rows[3 * place : 3 * place + 3]
        return Span(self._rows[3 * place - 3] if place else 0, stop, turn, *self._marks[mark])


def runs_of(generation: Generation) -> Iterator[tuple[str | None, int, int, MaskReason | None]]:
    """The runs of a generation's tokens with the same version and the same reason for a mask: (version, start, stop,
    reason). The reason is "constrained" where a grammar changed the probabilities, else None."""
    forced = generation.constrained
    for version, start, stop in generation.versions():
        ends = [index for index in range(start + 1, stop) if forced[index] != forced[index - 1]] if forced else []
        for first, last in pairwise([start, *ends, stop]):
            yield version, first, last, "constrained" if any(forced[first:last]) else None


@dataclass(slots=True)
class Turn:
    """Data about one turn without its tokens. Seconds are wall-clock."""

    finish_reason: FinishReason = "stop"
    matched: int | str | None = None
    weight_versions: list[str] = field(default_factory=list)
    """The weight version of each generation of the turn, and of each part of a generation if the weights changed in
    between. An aborted turn has several generations."""
    prompt_tokens: int = 0
    """Number of input tokens of the engine, summed over the turn's generations."""
    cached_tokens: int = 0
    sampled_tokens: int = 0
    generate_s: float = 0.0
    env_s: float = 0.0
    calls: list[str] = field(default_factory=list)
    """Names of the called tools, in order; unreadable calls are left out."""
    bad_call: Literal["structural", "content"] | None = None
    """Kind of the worst BadCall in the turn."""
    reward: float | None = None
    raw: str = ""
    """Raw text from the Env that continued this turn, before any cut. No message holds the text."""
    summary: bool = False
    """Whether the turn is a summary of the conversation, after which the next segment begins."""
    meta: list[Mapping[str, Any]] = field(default_factory=list)
    """The engine's own `meta` of each generation (top-p ids, routed experts); not serialised."""

    def add(self, generation: Generation, *, prompt_tokens: int, seconds: float) -> None:
        """Count a generation of this turn. An aborted turn has several generations."""
        self.prompt_tokens += prompt_tokens
        self.sampled_tokens += len(generation.tokens)
        self.cached_tokens += int(generation.cached_tokens)
        self.finish_reason, self.matched = generation.finish_reason, to_json_lossy(generation.matched)
        self.generate_s += seconds
        # New lists of the exact length: a growing list keeps spare places, in each turn of each episode.
        self.meta = [*self.meta, generation.meta]
        versions = [text(str(version)) for version, _, _ in generation.versions() if version is not None]
        self.weight_versions = [*self.weight_versions, *versions]

    def to_json(self) -> dict[str, JSON]:
        """The turn as JSON, without `meta`. `raw` and `summary` are left out if empty."""
        data = asdict(replace(self, meta=[]))
        del data["meta"]
        return {name: value for name, value in data.items() if value or name not in ("raw", "summary")}

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Self:
        """Read the output of `to_json`. In older files, bad calls are called parse errors."""
        return cls(**{"bad_call" if name == "parse_error" else name: value for name, value in data.items()})


@dataclass(frozen=True, slots=True)
class Ledger:
    """A count of every response token, with `sampled == trained + sum(masked.values())`."""

    sampled: int = 0
    trained: int = 0
    masked: Mapping[str, int] = field(default_factory=dict)
    observation: int = 0
    scaffold: int = 0

    def __add__(self, other: Ledger) -> Ledger:
        masked = {k: self.masked.get(k, 0) + other.masked.get(k, 0) for k in {**self.masked, **other.masked}}
        return Ledger(
            self.sampled + other.sampled,
            self.trained + other.trained,
            masked,
            self.observation + other.observation,
            self.scaffold + other.scaffold,
        )
