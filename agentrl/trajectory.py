"""Turn continuation: the tokens of one episode, who wrote each, and which are trained.

Tokens are the truth. Messages and actions annotate them and are never rendered again, unless thoughts are stripped
(`begin_segment`). An episode appends in this order, where an aborted generation may be followed by another that goes on
in the same turn:

    append_prompt  (append_model+  append_action  (append_observation | begin_segment))*

After every append, at a cost of O(new tokens):

- `len(loss_mask) == len(log_probs) == response_length == len(tokens) - prompt_length`
- spans partition the response; a span is `sampled` (by the model), or else `observation` or `scaffold` (never trained)
- `loss_mask` is 1 exactly at sampled tokens without a reason against it
- `ledger.sampled == ledger.trained + sum(ledger.masked.values())`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, pairwise, takewhile
from typing import Self, get_args

from agentrl.engine.base import Generation
from agentrl.errors import Failure, LedgerError
from agentrl.render.base import Rendered
from agentrl.spans import Ledger, MaskReason, Source, Span, SpanType, Turn
from agentrl.types import JSON, Action, Message, Raw, StopReason, Task, ToolCall, ToolSpec

__all__ = ["Ledger", "MaskReason", "Source", "Span", "Trajectory", "Turn", "assistant_message", "total_ledger"]

SCHEMA_VERSION = 1

_OF_A_SEGMENT = (
    "tokens", "prompt_length", "log_probs", "loss_mask", "spans", "thinking",
    "_sampled", "_trained", "_observation", "_scaffold", "_masked", "_digest", "_ends", "_sent",
)  # fmt: skip


class Trajectory:
    """One episode's tokens and all that is known of them. Grown by `append_*`; never edited otherwise.

    Where the prompt was rewritten on purpose (`begin_segment`), tokens, spans, log-probs and ledger are those of the
    last segment; turns, actions, messages and all else are the whole episode's.
    """

    def __init__(self, task: Task | None = None, *, session_id: str = "", tools: Sequence[ToolSpec] = ()) -> None:
        self.task = task or Task()
        self.session_id = session_id
        self.tools: Sequence[ToolSpec] = tuple(tools)
        self.tokens: list[int] = []
        """Prompt and response; exactly what the engine is sent next. Append-only."""
        self.prompt_length = 0
        self.log_probs: list[float] = []
        """Of each response token when it was sampled; 0.0 where it was not. Kept where masked."""
        self.loss_mask: list[int] = []
        self.spans: list[Span] = []
        self.turns: list[Turn] = []
        self.earlier: list[Trajectory] = []
        """Finished segments, each with its own turns and actions; messages, reward and stop are here alone."""
        self.messages: list[Message] = []
        self.actions: list[Action] = []
        self.thinking = False
        """The last generation prompt left a thinking block open."""
        self.reward: float | None = None
        self.reward_parts: Mapping[str, float] = {}
        self.stop: StopReason | None = None
        self.failure: Failure | None = None
        self.info: dict[str, JSON] = {}
        self._sampled = self._trained = self._observation = self._scaffold = 0
        self._masked: dict[str, int] = {}
        self._digest = 0
        """A hash over all tokens, grown with each append."""
        self._ends: list[int] = []
        """Length of the response after each append that grew the digest; masking splits spans, but not these."""
        self._sent: list[tuple[int, int]] = []
        """Of each prompt that an engine was sent: after how many appends, and the digest."""

    # Reading

    @property
    def segments(self) -> list[Trajectory]:
        """The sequences to train on, in order: mostly one. Each sampled token is in the response of exactly one."""
        return [*self.earlier, self]

    @property
    def length(self) -> int:
        """Prompt and response."""
        return len(self.tokens)

    @property
    def response_length(self) -> int:
        return len(self.loss_mask)

    @property
    def response(self) -> list[int]:
        """Response token ids, shape [response_length]; a copy."""
        return self.tokens[self.prompt_length :]

    @property
    def sources(self) -> list[Source]:
        """Origin of each response token, shape [response_length]."""
        return [source for span in self.spans for source in [span.source] * (span.stop - span.start)]

    @property
    def ledger(self) -> Ledger:
        return Ledger(self._sampled, self._trained, dict(self._masked), self._observation, self._scaffold)

    @property
    def open(self) -> bool:
        """A turn has been sampled that no action has closed yet."""
        return len(self.turns) > len(self.actions)

    @property
    def turn_tokens(self) -> list[int]:
        """Sampled tokens of the last turn, resumptions joined."""
        last = len(self.turns) - 1
        found: list[int] = []
        for span in reversed(self.spans):
            if span.turn != last:
                break
            if span.kind == "sampled":
                found[:0] = self.tokens[self.prompt_length + span.start : self.prompt_length + span.stop]
        return found

    @property
    def answer(self) -> str:
        """What the model said last: the content of its last action, "" before the first."""
        return self.actions[-1].content if self.actions else ""

    @property
    def step_rewards(self) -> list[float]:
        """The rewards that steps gave, in order; steps that gave none are left out."""
        return [turn.reward for turn in self.turns if turn.reward is not None]

    @property
    def weight_versions(self) -> list[str]:
        """Version of the weights behind each generation, in order."""
        return [version for turn in self.turns for version in turn.weight_versions]

    @property
    def truncated(self) -> bool:
        """Ended by a bound on tokens or time, not by the model or the Env."""
        return self.stop is not None and self.stop.truncated

    @property
    def is_valid(self) -> bool:
        """Its reward says something about the policy: not failed by the environment, not aborted."""
        return self.stop not in (StopReason.FAILED, StopReason.ABORTED)

    @property
    def tool_calls(self) -> int:
        """How many calls named a tool that there is."""
        known = {spec.get("function", spec).get("name") for spec in self.tools}
        return sum(name in known for turn in self.turns for name in turn.calls)

    @property
    def parse_errors_in_a_row(self) -> int:
        """How many turns, the last one backwards, held a wrong tool call."""
        return sum(1 for _ in takewhile(lambda turn: turn.parse_error is not None, reversed(self.turns)))

    @property
    def prefix_breaks(self) -> int:
        """Generations whose prompt is no longer the beginning of `tokens`, found by reading all of them: 0, unless
        something rewrote what an engine had been sent. Generations read from JSON are not counted."""
        digests = self._digests()
        broken = sum(digests[appends] != digest for appends, digest in self._sent)
        return broken + sum(segment.prefix_breaks for segment in self.earlier)

    def _digests(self) -> list[int]:
        """The digest after the prompt and after each append, computed anew."""
        response = self.response
        found = [hash((0, *self.tokens[: self.prompt_length]))]
        for start, stop in pairwise([0, *self._ends]):
            found.append(hash((found[-1], *response[start:stop])))
        return found

    # Growing

    def append_prompt(self, rendered: Rendered, messages: Sequence[Message] = ()) -> None:
        """The first tokens of the episode; not part of the response."""
        _require(not self.tokens, "the prompt is appended once, and first")
        _require(len(rendered.tokens) > 0, "a prompt has at least one token")
        self.tokens.extend(rendered.tokens)
        self.prompt_length = len(self.tokens)
        self._digest = hash((0, *rendered.tokens))
        self.messages.extend(messages)
        self.thinking = rendered.thinking

    def append_model(self, generation: Generation, *, prompt_tokens: int | None = None, seconds: float = 0.0) -> None:
        """Sampled tokens, loss_mask 1. After an abort this extends the turn that is still open.

        Raises LedgerError if tokens and log_probs differ in length, a log_prob is not finite or positive, or
        `prompt_tokens` (what the engine was given) is not all the tokens so far.
        """
        tokens, log_probs = generation.tokens, generation.log_probs
        _require(self.prompt_length > 0, "a model turn needs a prompt before it")
        _require(len(tokens) == len(log_probs), f"{len(tokens)} sampled tokens but {len(log_probs)} log_probs")
        # A hair above 0 is rounding: engines compute log-probs in float32.
        bad = next((x for x in log_probs if not (math.isfinite(x) and x <= 1e-4)), None)
        _require(bad is None, f"a log_prob is {bad}; it must be finite and at most 0")
        _require(prompt_tokens in (None, len(self.tokens)), f"sent {prompt_tokens} tokens of {len(self.tokens)}")
        if not self.open:
            self.turns.append(Turn())
        self._sent.append((len(self._ends), self._digest))
        turn = self.turns[-1]
        turn.prompt_tokens += len(self.tokens)
        turn.sampled_tokens += len(tokens)
        turn.cached_tokens += generation.cached_tokens
        turn.finish_reason, turn.matched = generation.finish_reason, generation.matched
        turn.generate_s += seconds
        turn.meta.append(generation.meta)
        if generation.weight_version is not None:
            turn.weight_versions.append(generation.weight_version)
        self._extend(tokens, "sampled", log_probs, generation.weight_version)
        self._sampled += len(tokens)
        self._trained += len(tokens)
        self._check()

    def append_action(self, action: Action) -> None:
        """Close the open turn with what it meant. Raises LedgerError if no turn is open."""
        _require(self.open, "an action closes a turn, and none is open")
        self.actions.append(action)
        self.turns[-1].calls = [call.name for call in action.calls if call.error is None]
        if action.error is not None and self.tools:  # without tools, nothing is a tool call
            self.turns[-1].parse_error = action.error.kind
        self.messages.append(assistant_message(action))

    def append_observation(self, rendered: Rendered, messages: Sequence[Message] = ()) -> None:
        """What the template and the environment wrote after a turn: loss_mask 0, log_probs 0.0."""
        _require(bool(self.turns) and not self.open, "an observation follows a turn that an action has closed")
        at = 0
        for span in rendered.spans:
            _require(span.start == at and span.stop > at, f"rendered spans leave a gap at token {at}")
            self._extend(rendered.tokens[span.start : span.stop], span.kind)
            if span.kind == "observation":
                self._observation += span.stop - span.start
            else:
                self._scaffold += span.stop - span.start
            at = span.stop
        _require(at == len(rendered.tokens), f"rendered spans end at {at} of {len(rendered.tokens)} tokens")
        self.messages.extend(messages)
        self.thinking = rendered.thinking
        if rendered.cut:
            self.info["observation_tokens_cut"] = self.info.get("observation_tokens_cut", 0) + rendered.cut
        self._check()

    def begin_segment(self, rendered: Rendered, messages: Sequence[Message] = ()) -> None:
        """Go on behind another prompt, the tokens so far becoming a segment of their own, trained as it is.

        `rendered` is the whole next prompt: earlier turns are in it again, and not trained again. Raises LedgerError if
        no turn was closed since the last prompt.
        """
        first = self._first_turn
        _require(len(self.turns) > first and not self.open, "a segment ends with a turn that an action has closed")
        fresh = Trajectory(self.task, session_id=self.session_id, tools=self.tools)
        fresh.append_prompt(rendered)
        done = Trajectory(self.task, session_id=self.session_id, tools=self.tools)
        for name in _OF_A_SEGMENT:
            setattr(done, name, getattr(self, name))
            setattr(self, name, getattr(fresh, name))
        done.turns, done.actions = self.turns[first:], self.actions[first:]
        done.spans = [replace(span, turn=span.turn - first) for span in done.spans]
        self.earlier.append(done)
        self.messages.extend(messages)

    @property
    def _first_turn(self) -> int:
        """Index of the first turn of the last segment."""
        return sum(len(segment.turns) for segment in self.earlier)

    def mask(self, reason: MaskReason, *, turn: int | None = None) -> None:
        """Take the sampled tokens of one turn, or of all, out of the loss. The first reason given stays."""
        _require(reason in get_args(MaskReason), f"{reason!r} is no reason to mask; known: {get_args(MaskReason)}")
        first = 0
        for segment in self.earlier:
            segment.mask(reason, turn=None if turn is None else turn - first)
            first += len(segment.turns)
        for i, span in enumerate(self.spans):
            if turn in (None, span.turn):
                self.spans[i] = self._masked_span(span, reason)
        self._check()

    def mask_where(self, loss_mask: Sequence[int], reason: MaskReason) -> None:
        """Take out of the loss each sampled token of the last segment at which `loss_mask`, shape [response_length], is
        0. Spans that are masked in part are split. Raises LedgerError if the lengths differ."""
        _require(len(loss_mask) == self.response_length, f"{len(loss_mask)} of {self.response_length} mask values")
        pieces: list[Span] = []
        for span in self.spans:
            if span.kind != "sampled" or all(loss_mask[span.start : span.stop]):
                pieces.append(span)
                continue
            for kept, run in groupby(range(span.start, span.stop), key=lambda i: bool(loss_mask[i])):
                positions = list(run)
                piece = replace(span, start=positions[0], stop=positions[-1] + 1)
                pieces.append(piece if kept else self._masked_span(piece, reason))
        self.spans = pieces
        self._check()

    def _masked_span(self, span: Span, reason: MaskReason) -> Span:
        """The span, its sampled tokens out of the loss; the first reason given stays."""
        if span.kind != "sampled" or span.masked is not None:
            return span
        length = span.stop - span.start
        self.loss_mask[span.start : span.stop] = [0] * length
        self._trained -= length
        self._masked[reason] = self._masked.get(reason, 0) + length
        return replace(span, masked=reason)

    def _extend(
        self, tokens: Sequence[int], kind: SpanType, log_probs: Sequence[float] = (), version: str | None = None
    ) -> None:
        if not tokens:
            return
        start, sampled = self.response_length, kind == "sampled"
        self.tokens.extend(tokens)
        self._digest = hash((self._digest, *tokens))
        self.loss_mask.extend([int(sampled)] * len(tokens))
        self.log_probs.extend(log_probs if sampled else [0.0] * len(tokens))
        self.spans.append(Span(start, start + len(tokens), len(self.turns) - 1, kind, version))
        self._ends.append(start + len(tokens))

    # Checking

    def _check(self) -> None:
        response = len(self.tokens) - self.prompt_length
        _require(
            len(self.loss_mask) == len(self.log_probs) == response,
            f"{response} response tokens, {len(self.loss_mask)} in loss_mask, {len(self.log_probs)} log_probs",
        )
        _require((self.spans[-1].stop if self.spans else 0) == response, "spans do not reach the response's end")
        masked = sum(self._masked.values())
        _require(
            self._sampled == self._trained + masked,
            f"sampled {self._sampled} != trained {self._trained} + masked {masked}",
        )
        _require(
            self._sampled + self._observation + self._scaffold == response, "the ledger does not cover the response"
        )

    def verify(self) -> None:
        """Check every invariant over every token, in O(response). Raises LedgerError naming the first that fails."""
        self._check()
        at = 0
        for span in self.spans:
            _require(span.start == at < span.stop, f"spans overlap or leave a gap at {at}")
            trained = span.kind == "sampled" and span.masked is None
            _require(span.kind == "sampled" or span.masked is None, f"span at {at} was not sampled, yet is masked")
            mask = self.loss_mask[span.start : span.stop]
            _require(mask.count(int(trained)) == len(mask), f"loss_mask of the {span.kind} span at {at} is mixed")
            if span.kind != "sampled":
                _require(not any(self.log_probs[span.start : span.stop]), f"unsampled tokens at {at} have log_probs")
            at = span.stop
        _require(self._trained == sum(self.loss_mask), f"trained {self._trained} != loss_mask {sum(self.loss_mask)}")
        for segment in self.earlier:
            segment.verify()

    # Serialising

    def to_json(self) -> dict[str, JSON]:
        """A versioned picture of everything but the engine's own metadata, ready for `json.dumps`."""
        return {
            "version": SCHEMA_VERSION,
            "session_id": self.session_id,
            "task": _task_to_json(self.task),
            "tools": list(self.tools),
            "tokens": list(self.tokens),
            "prompt_length": self.prompt_length,
            "loss_mask": list(self.loss_mask),
            "log_probs": list(self.log_probs),
            "spans": [asdict(span) for span in self.spans],
            "turns": [_without(asdict(replace(turn, meta=[])), "meta") for turn in self.turns],
            "messages": [dict(message) for message in self.messages],
            "actions": [asdict(action) for action in self.actions],
            "earlier": [segment.to_json() for segment in self.earlier],
            "thinking": self.thinking,
            "reward": self.reward,
            "reward_parts": dict(self.reward_parts),
            "stop": self.stop,
            "failure": asdict(self.failure) if self.failure else None,
            "info": self.info,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Self:
        """Read what `to_json` wrote. Raises LedgerError if it was tampered with, ValueError if its version is newer."""
        version = data.get("version") if isinstance(data, Mapping) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"trajectory schema version {version!r}; this agentrl reads {SCHEMA_VERSION}")
        self = cls(_task_from_json(data["task"]), session_id=data["session_id"], tools=data["tools"])
        self.tokens, self.prompt_length = list(data["tokens"]), data["prompt_length"]
        self.loss_mask, self.log_probs = list(data["loss_mask"]), [float(x) for x in data["log_probs"]]
        self.spans = [Span(**span) for span in data["spans"]]
        self.turns = [Turn(**turn) for turn in data["turns"]]
        self.messages = list(data["messages"])
        self.actions = [_action_from_json(action) for action in data["actions"]]
        self.earlier = [cls.from_json(segment) for segment in data.get("earlier", ())]
        self.thinking = data["thinking"]
        self.reward, self.reward_parts = data["reward"], data["reward_parts"]
        self.stop = StopReason(data["stop"]) if data["stop"] is not None else None
        self.failure = Failure(**data["failure"]) if data["failure"] else None
        self.info = dict(data["info"])
        for span in self.spans:
            self._count(span)
        self._ends = [span.stop for span in self.spans]
        self._digest = self._digests()[-1]
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


def total_ledger(trajectories: Iterable[Trajectory]) -> Ledger:
    """The ledgers of many trajectories added up; of a whole episode: `total_ledger(trajectory.segments)`."""
    return sum((t.ledger for t in trajectories), Ledger())


def assistant_message(action: Action) -> Message:
    """The chat message that an Action stands for, as data sets spell it, without what could not be read as a call."""
    message: dict[str, JSON] = {"role": "assistant", "content": action.content}
    if action.reasoning is not None:
        message["reasoning_content"] = action.reasoning
    if calls := [call for call in action.calls if call.error is None]:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in calls
        ]
    return message


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LedgerError(message)


def _without(mapping: dict[str, JSON], key: str) -> dict[str, JSON]:
    return {k: v for k, v in mapping.items() if k != key}


def _task_to_json(task: Task) -> dict[str, JSON]:
    prompt = {"raw": task.prompt.text} if isinstance(task.prompt, Raw) else task.prompt
    prompt = prompt if isinstance(prompt, str | dict) else list(prompt)
    return {**asdict(replace(task, prompt="")), "prompt": prompt, "tools": list(task.tools)}


def _task_from_json(data: Mapping[str, JSON]) -> Task:
    prompt = data["prompt"]
    prompt = Raw(prompt["raw"]) if isinstance(prompt, dict) else prompt
    return Task(**{**data, "prompt": prompt, "tools": tuple(data["tools"])})


def _action_from_json(data: Mapping[str, JSON]) -> Action:
    calls = tuple(ToolCall(**call) for call in data["calls"])
    return Action(**{**data, "calls": calls, "tokens": tuple(data["tokens"])})
