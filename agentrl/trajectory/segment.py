"""One sequence to train on: tokens with their origins and masks. Most episodes are one segment.

Tokens and the log-probs of sampled tokens are in arrays, 4 bytes each, which the garbage collector need not visit.
Lists are made on demand; `ids` is the array itself. The mask is computed from the spans. The methods are called in this
order, where several `append_model` form one turn after an aborted generation:

    append_prompt  (append_model+  append_action  append_observation)*

After every append, at a cost of O(new tokens):

- spans partition the response; a span is `sampled` (by the model), or else `observation` or `scaffold` (never trained)
- `loss_mask` is 1 exactly at sampled tokens that are not masked for a reason
- each sampled token has a log-prob, and other tokens have none
- `ledger.sampled == ledger.trained + sum(ledger.masked.values())`
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, repeat
from types import MappingProxyType
from typing import Self, TypeVar, get_args
from zlib import crc32

from agentrl.image import Image
from agentrl.trajectory.arrays import TokenIds, checked, id_array, log_prob_array, require
from agentrl.trajectory.spans import Ledger, MaskReason, Source, Span, Spans, SpanType, Turn, runs_of
from agentrl.types import JSON, Action, Generation, Rendered, RenderedImage, ToolCall, single_pads

T = TypeVar("T")


class Segment:
    """Tokens of one sequence. Only the `append_*`, `mask*` and `drop_prompt` methods change a segment. The number of a
    turn is its index within the segment, from 0."""

    __slots__ = (
        "_digest",
        "_log_probs",
        "_masked",
        "_observation",
        "_sampled",
        "_scaffold",
        "_sent",
        "_trained",
        "branch",
        "first_message",
        "ids",
        "media",
        "prompt_length",
        "request",
        "said",
        "spans",
        "thinking",
        "turns",
    )

    def __init__(self) -> None:
        self.ids = TokenIds()
        """Token ids of prompt and response, with all pad tokens of images."""
        self.media: list[RenderedImage] = []
        """The images among `ids`, in order. Each image takes a run of pad tokens, which are never sampled."""
        self.prompt_length = 0
        self.branch = ""
        """In an agent's session: the branch name of the replies, such as `solver/1`. "" for the main line. The role is
        the part before the first slash."""
        self.first_message = 0
        """Index in `Trajectory.messages` of the first message in the prompt. Above 0 after a summary."""
        self.request = ""
        """The request for a summary, if the next or the open turn is the summary; else ""."""
        self.spans = Spans()
        self.turns: list[Turn] = []
        self.thinking = False
        """Whether the last generation prompt left a thinking block open."""
        self._log_probs: array[float] = array("f")
        """Log-probs of the sampled tokens in order, including masked tokens."""
        self.said: list[Action] = []
        """The action of each closed turn, without tokens: `ids` holds the tokens."""
        self._sampled = self._trained = self._observation = self._scaffold = 0
        self._masked: dict[str, int] = {}
        self._digest = 0
        """The CRC-32 of all tokens, updated by each append. Equal tokens have equal CRCs, in any pieces."""
        self._sent = array("Q")
        """Two numbers for each prompt sent to an engine: the length in tokens, and the CRC-32."""

    # Reading

    @property
    def length(self) -> int:
        """Number of tokens of prompt and response."""
        return len(self.ids)

    @property
    def tokens(self) -> list[int]:
        """Token ids of prompt and response; a copy."""
        return self.ids.tolist()

    @property
    def engine_ids(self) -> array[int]:
        """Token ids for an engine: `ids` with a single pad token for each image. The engine expands the pads."""
        return single_pads(self.ids, self.media)

    @property
    def images(self) -> list[Image]:
        """The images for the engine, in the order of the pads in `engine_ids`."""
        return [image.image for image in self.media]

    @property
    def response_length(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def response(self) -> list[int]:
        """Response token ids, shape [response_length]; a copy."""
        return self.ids[self.prompt_length :].tolist()

    @property
    def loss_mask(self) -> list[int]:
        """1 for each trained response token, else 0; shape [response_length]."""
        return _per_token(self.spans, lambda span: int(span.trained))

    @property
    def log_probs(self) -> list[float]:
        """The log-prob of each sampled token at the time of sampling, 0.0 for other tokens; shape [response_length]."""
        values, offset = list[float](), 0
        for span in self.spans:
            length = span.stop - span.start
            if span.kind == "sampled":
                values += self._log_probs[offset : offset + length].tolist()
                offset += length
            else:
                values.extend(repeat(0.0, length))
        return values

    @property
    def sources(self) -> list[Source]:
        """Origin of each response token, shape [response_length]."""
        return _per_token(self.spans, lambda span: span.source)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self._sampled, self._trained, dict(self._masked), self._observation, self._scaffold)

    @property
    def open(self) -> bool:
        """Whether a turn has been sampled but not closed by an action."""
        return len(self.turns) > len(self.said)

    @property
    def actions(self) -> list[Action]:
        """The action of each closed turn, with its tokens."""
        spans = self.spans.sampled_by_turn()
        return [replace(action, tokens=tuple(self._at(spans.get(turn, ())))) for turn, action in enumerate(self.said)]

    @property
    def last_action(self) -> Action | None:
        return self._with_tokens(self.said[-1], len(self.said) - 1) if self.said else None

    @property
    def turn_tokens(self) -> list[int]:
        """Sampled tokens of the last turn, from all its generations."""
        return self.tokens_of(len(self.turns) - 1)

    def tokens_of(self, turn: int) -> list[int]:
        """Sampled tokens of the turn with an index."""
        return self._at(self.spans.sampled_in(turn))

    def _at(self, spans: Iterable[tuple[int, int]]) -> list[int]:
        """The tokens of some spans of the response."""
        first, tokens = self.prompt_length, array("i")
        for start, stop in spans:
            tokens += self.ids[first + start : first + stop]
        return tokens.tolist()

    @property
    def prefix_breaks(self) -> int:
        """Number of generations whose prompt is no longer the beginning of `ids`. The count reads all tokens."""
        breaks, offset, digest = 0, 0, 0
        for length, sent in zip(self._sent[::2], self._sent[1::2], strict=True):
            digest, offset = crc32(self.ids[offset:length], digest), length
            breaks += digest != sent
        return breaks

    def _with_tokens(self, action: Action, turn: int) -> Action:
        return replace(action, tokens=tuple(self.tokens_of(turn)))

    # Growing

    def append_prompt(self, rendered: Rendered) -> None:
        """The first tokens; not part of the response."""
        require(not self.ids, "the prompt is appended once, and first")
        require(len(rendered.tokens) > 0, "a prompt has at least one token")
        self._place(rendered)
        self.ids.extend(rendered.tokens)
        self.prompt_length = len(self.ids)
        self._digest = crc32(self.ids)
        self.thinking = rendered.thinking

    def append_model(self, generation: Generation, *, prompt_tokens: int | None = None, seconds: float = 0.0) -> None:
        """Append sampled tokens, loss_mask 1. After an abort the tokens extend the open turn.

        Raises LedgerError if tokens and log_probs differ in length, for an invalid value, or if `prompt_tokens` (the
        engine's input) differs from all tokens so far.
        """
        tokens, log_probs = checked(generation)
        require(self.prompt_length > 0, "a model turn needs a prompt before it")
        require(prompt_tokens in (None, len(self.ids)), f"sent {prompt_tokens} tokens of {len(self.ids)}")
        if not self.open:
            self.turns.append(Turn(summary=bool(self.request)))
        self._sent.extend((len(self.ids), self._digest))
        self.turns[-1].add(generation, prompt_tokens=len(self.ids), seconds=seconds)
        for version, start, stop, masked in runs_of(generation):
            self._extend(tokens[start:stop], "sampled", version, masked)
        self._log_probs.extend(log_probs)
        self._sampled += len(tokens)
        self._trained += len(tokens) - (forced := sum(generation.constrained))
        self._masked |= {"constrained": self._masked.get("constrained", 0) + forced} if forced else {}
        self._check()

    def append_action(self, action: Action) -> None:
        """Close the open turn with its action. Raises LedgerError if no turn is open, or if the tokens differ."""
        require(self.open, "an action closes a turn, and none is open")
        require(
            not action.tokens or list(action.tokens) == self.turn_tokens, "an action of other tokens than the turn's"
        )
        self.said.append(replace(action, tokens=()))
        self.request = ""
        self.turns[-1].calls = [call.name for call in action.calls if call.error is None]

    def append_observation(self, rendered: Rendered) -> None:
        """Append the tokens of template and environment after a turn: loss_mask 0, log_probs 0.0."""
        require(bool(self.turns) and not self.open, "an observation follows a turn that an action has closed")
        self._place(rendered)
        offset = 0
        for span in rendered.spans:
            require(span.start == offset and span.stop > offset, f"rendered spans leave a gap at token {offset}")
            self._extend(rendered.tokens[span.start : span.stop], span.kind)
            if span.kind == "observation":
                self._observation += span.stop - span.start
            else:
                self._scaffold += span.stop - span.start
            offset = span.stop
        require(offset == len(rendered.tokens), f"rendered spans end at {offset} of {len(rendered.tokens)} tokens")
        self.thinking = rendered.thinking
        self._check()

    def append_turns(self, sampled: Segment) -> None:
        """Append the turns of another segment. Its prompt equals all tokens of this segment; it may be dropped.

        Raises LedgerError if the engine was sent different tokens.
        """
        require(not self.open and self.prompt_length > 0, "turns follow a prompt or an observation")
        if sampled._sent:
            sent, expected = tuple(sampled._sent[:2]), (len(self.ids), self._digest)
            require(sent == expected, f"a turn was sampled after {sent[0]} other tokens than these {expected[0]}")
        turns, start = len(self.turns), self.response_length
        for span in sampled.spans:
            self.spans.add(span.stop + start, span.turn + turns, span.kind, span.weight_version, span.masked)
            self._count(span)
        self.media += _moved(sampled.media, len(self.ids) - sampled.prompt_length)
        new = sampled.ids[sampled.prompt_length :]
        self.ids.extend(new)
        self._digest = crc32(new, self._digest)
        self._log_probs.extend(sampled._log_probs)
        self._sent.extend(sampled._sent)
        self.turns.extend(sampled.turns)
        self.said.extend(sampled.said)
        self._check()

    def drop_prompt(self) -> None:
        """Drop the prompt's tokens. The response can be read, and appended elsewhere by `append_turns`."""
        self.media = _moved([image for image in self.media if image.start >= self.prompt_length], -self.prompt_length)
        self.ids, self.prompt_length = TokenIds(self.ids[self.prompt_length :]), 0

    def mask(self, reason: MaskReason, *, turn: int | None = None) -> None:
        """Exclude the sampled tokens of one turn, or of all turns, from the loss. A masked token keeps its first
        reason."""
        require(reason in get_args(MaskReason), f"{reason!r} is not a reason to mask; known: {get_args(MaskReason)}")
        if turn is None:
            self.spans = Spans(self._mask(span, reason) for span in self.spans)
        elif count := self.spans.mask(turn, reason):
            self._count_masked(count, reason)
        self._check()

    def mask_where(self, loss_mask: Sequence[int], reason: MaskReason) -> None:
        """Exclude the sampled tokens whose `loss_mask`, shape [response_length], is 0 from the loss.

        Partly masked spans are split. Raises LedgerError if the lengths differ.
        """
        require(len(loss_mask) == self.response_length, f"{len(loss_mask)} of {self.response_length} mask values")
        self.spans = Spans(piece for span in self.spans for piece in self._mask_in_part(span, loss_mask, reason))
        self._check()

    def _mask_in_part(self, span: Span, loss_mask: Sequence[int], reason: MaskReason) -> Iterator[Span]:
        if span.kind != "sampled" or all(loss_mask[span.start : span.stop]):
            yield span
            return
        for trained, run in groupby(range(span.start, span.stop), key=lambda i: bool(loss_mask[i])):
            positions = list(run)
            piece = replace(span, start=positions[0], stop=positions[-1] + 1)
            yield piece if trained else self._mask(piece, reason)

    def _mask(self, span: Span, reason: MaskReason) -> Span:
        if not span.trained:
            return span
        self._count_masked(span.stop - span.start, reason)
        return replace(span, masked=reason)

    def _count_masked(self, count: int, reason: MaskReason) -> None:
        self._trained -= count
        self._masked[reason] = self._masked.get(reason, 0) + count

    def _place(self, rendered: Rendered) -> None:
        """Record the images of tokens that are about to be appended."""
        self.media += _moved(rendered.media, len(self.ids))

    def _extend(
        self, tokens: Sequence[int], kind: SpanType, version: str | None = None, masked: MaskReason | None = None
    ) -> None:
        if not tokens:
            return
        new = array("i", tokens)
        self.ids.extend(new)
        self._digest = crc32(new, self._digest)
        self.spans.add(len(self.ids) - self.prompt_length, len(self.turns) - 1, kind, version, masked)

    # Checking

    def _check(self) -> None:
        response, masked = self.response_length, sum(self._masked.values())
        if (
            self.spans.stop == response
            and len(self._log_probs) == self._sampled == self._trained + masked
            and self._sampled + self._observation + self._scaffold == response
        ):
            return
        require(self.spans.stop == response, "spans do not reach the response's end")
        require(
            len(self._log_probs) == self._sampled, f"{self._sampled} sampled tokens, {len(self._log_probs)} log_probs"
        )
        require(
            self._sampled == self._trained + masked,
            f"sampled {self._sampled} != trained {self._trained} + masked {masked}",
        )
        require(
            self._sampled + self._observation + self._scaffold == response, "the ledger does not cover the response"
        )

    def verify(self) -> None:
        """Check every invariant over every token, in O(response). Raises LedgerError for the first broken invariant."""
        self._check()
        for span in self.spans:
            require(
                span.kind == "sampled" or span.masked is None, f"span at {span.start} was not sampled, yet is masked"
            )
        trained = sum(span.stop - span.start for span in self.spans if span.trained)
        require(self._trained == trained, f"trained {self._trained} != {trained} in the spans")
        log_prob_array(self._log_probs)
        id_array(self.ids)
        self._verify_media()

    def _verify_media(self) -> None:
        offset, sampled = 0, [(span.start, span.stop) for span in self.spans if span.kind == "sampled"]
        for image in self.media:
            begin, end = image.start, image.stop
            require(offset <= begin < end <= len(self.ids), f"an image at {begin} overlaps or is outside")
            require(len(set(self.ids[begin:end])) == 1, f"the image at {begin} is cut or written over")
            start, stop = begin - self.prompt_length, end - self.prompt_length
            require(not any(a < stop and start < b for a, b in sampled), f"the image at {begin} was sampled")
            offset = end

    # Serialising

    def to_json(self) -> dict[str, JSON]:
        """The segment as JSON, without the engine's own metadata."""
        return {
            "tokens": self.tokens,
            "prompt_length": self.prompt_length,
            "loss_mask": self.loss_mask,
            "log_probs": self.log_probs,
            "spans": [asdict(span) for span in self.spans],
            "turns": [turn.to_json() for turn in self.turns],
            "actions": [asdict(action) for action in self.actions],
            "thinking": self.thinking,
            **({"branch": self.branch} if self.branch else {}),
            **({"first_message": self.first_message} if self.first_message else {}),
            **({"request": self.request} if self.request else {}),
            **({"media": [[m.start, m.stop, m.image.digest] for m in self.media]} if self.media else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON], images: Mapping[str, Image] = MappingProxyType({})) -> Self:
        """Read the output of `to_json`. `images` are the messages' images by digest. Raises LedgerError for a broken
        invariant."""
        self = cls()
        for start, stop, digest in data.get("media", ()):
            require(digest in images, f"the image of the tokens {start} to {stop} is in no message")
            self.media.append(RenderedImage(start, stop, images[digest]))
        self.ids, self.prompt_length = TokenIds(id_array(data["tokens"])), data["prompt_length"]
        self.spans = Spans(Span(**span) for span in data["spans"])
        self.turns = [Turn.from_json(turn) for turn in data["turns"]]
        self.said = [_action_from_json(action) for action in data["actions"]]
        self.thinking, self.branch = data["thinking"], data.get("branch", "")
        self.first_message, self.request = data.get("first_message", 0), data.get("request", "")
        for span in self.spans:
            self._count(span)
        require(list(data["loss_mask"]) == self.loss_mask, "loss_mask differs from the spans")
        log_probs, sources = data["log_probs"], self.sources
        require(len(log_probs) == len(sources), f"{len(log_probs)} log_probs of {len(sources)} tokens")
        pairs = list(zip(log_probs, sources, strict=True))
        require(not any(x for x, source in pairs if source != "sampled"), "tokens that were not sampled have log_probs")
        self._log_probs = log_prob_array([x for x, source in pairs if source == "sampled"])
        self._digest = crc32(self.ids)
        self.verify()
        return self

    def _count(self, span: Span) -> None:
        length = span.stop - span.start
        if span.source == "sampled":
            self._sampled += length
            if span.masked is None:
                self._trained += length
            else:
                self._masked[span.masked] = self._masked.get(span.masked, 0) + length
        elif span.source == "observation":
            self._observation += length
        else:
            self._scaffold += length


def _moved(media: Iterable[RenderedImage], by: int) -> list[RenderedImage]:
    return [image.moved(by) for image in media]


def _per_token(spans: Sequence[Span], value: Callable[[Span], T]) -> list[T]:
    """A list with `value(span)` for each token of the spans."""
    values: list[T] = []
    for span in spans:
        values.extend(repeat(value(span), span.stop - span.start))
    return values


def _action_from_json(data: Mapping[str, JSON]) -> Action:
    calls = tuple(ToolCall(**call) for call in data["calls"])
    return Action(**{**data, "calls": calls, "tokens": ()})
