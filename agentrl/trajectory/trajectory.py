"""The record of one episode: tokens with origins and masks, messages and reward.

The tokens are authoritative. Messages and actions describe the tokens, and are rendered again only if thoughts are
stripped (`begin_segment`). The methods are called in this order, where several `append_model` form one turn after an
aborted generation:

    append_prompt  (append_model+  append_action  (append_observation | begin_segment))*

Segments, usually one, hold the tokens. `Segment` checks the invariants of each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain, takewhile
from operator import itemgetter
from typing import Self, TypeVar

from agentrl.errors import Failure
from agentrl.image import images_in
from agentrl.plain import to_json_lossy
from agentrl.trajectory.arrays import require
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.spans import Ledger, MaskReason, Source, Span, Turn
from agentrl.types import (
    JSON,
    Action,
    CheckCounts,
    Generation,
    Message,
    Observed,
    Raw,
    Rendered,
    StopReason,
    Task,
    ToolSpec,
)

__all__ = [
    "Ledger",
    "MaskReason",
    "Segment",
    "Source",
    "Span",
    "Trajectory",
    "Turn",
    "assistant_message",
    "role_of",
    "total_ledger",
]

T = TypeVar("T")

SCHEMA_VERSION = 1
SIDE, SUB_AGENT = "side", "sub-agent"
"""Roles of branches that the agent's program does not name. SIDE: conversations besides the main conversation, such as
titles and summaries. SUB_AGENT: sub-agents that a client names in its headers. The branch is then `sub-agent/NAME`."""


class Trajectory:
    """The record of one episode. Only `append_*`, `begin_segment` and `mask*` methods change tokens and mask.

    The properties for tokens, spans, log-probs, mask and ledger show the last segment, usually the only segment. Turns,
    actions, messages and all other properties cover the whole episode. Turns and actions are in order of time.
    """

    def __init__(self, task: Task | None = None, *, session_id: str = "", tools: Sequence[ToolSpec] = ()) -> None:
        self.task = task or Task()
        self.session_id = session_id
        self.seat = ""
        """In an Env with seats: the seat whose conversation this trajectory holds."""
        self.tools: Sequence[ToolSpec] = tuple(tools)
        self.segments = [Segment()]
        """The sequences to train on, in order. Each sampled token is in the response of exactly one segment."""
        self.order: Sequence[int] = ()
        """For the turns of the first segment, then of the second, and so on: the turn's index in order of time. Empty
        if the turns are in order of time already."""
        self.messages: list[Message] = []
        self.reward: float | None = None
        self.reward_parts: Mapping[str, float] = {}
        self.branch_rewards: Mapping[str, float] = {}
        """For an agent: the rewards from `score` for branches of the session, by branch name or by role."""
        self.stop: StopReason | None = None
        self.failure: Failure | None = None
        self.info: dict[str, JSON] = {}
        self.checks = CheckCounts()
        """Counts of the checks while rendering prompts and observations. Texts that differ between runs, such as
        process ids, can change the counts."""
        self.session: Mapping[str, JSON] | None = None
        """For an agent with its own turns: the tree of the model's replies, the requests, and the replies that the
        client rewrote."""
        self.unread = 0
        """Number of messages at the end that have no tokens, because the episode ended before the model read the
        messages."""

    def __repr__(self) -> str:
        ledger = total_ledger(self.segments)
        masked = "".join(f", {count} {reason}" for reason, count in ledger.masked.items())
        parts = [
            f"{len(self.turns)} turns",
            f"{sum(segment.length for segment in self.segments)} tokens",
            f"{ledger.sampled} sampled ({ledger.trained} trained{masked})",
            f"stop {self.stop}",
            f"reward {self.reward if self.reward is None else format(self.reward, 'g')}",
        ]
        parts += [f"{self.failure.boundary} failed: {self.failure.error}"] if self.failure else []
        parts += [f"answer {self.answer!r:.60}"] if self.answer else []
        return f"<Trajectory {self.task.id or self.session_id or 'without a name'}: {', '.join(parts)}>"

    # The last segment

    @property
    def segment(self) -> Segment:
        """The last segment. The `append_*` methods extend this segment."""
        return self.segments[-1]

    @property
    def tokens(self) -> list[int]:
        """Token ids of prompt and response; a copy."""
        return self.segment.tokens

    @property
    def prompt_length(self) -> int:
        return self.segment.prompt_length

    @property
    def response(self) -> list[int]:
        """Response token ids, shape [len(loss_mask)]; a copy."""
        return self.segment.response

    @property
    def loss_mask(self) -> list[int]:
        """1 for each trained response token, else 0; a copy."""
        return self.segment.loss_mask

    @property
    def log_probs(self) -> list[float]:
        """The float32 log-prob of each sampled token at the time of sampling, also of masked tokens; a copy.

        Shape [response_length]. The value of other tokens is 0.0.
        """
        return self.segment.log_probs

    @property
    def ledger(self) -> Ledger:
        return self.segment.ledger

    # The whole episode

    @property
    def turns(self) -> list[Turn]:
        return self._in_time([segment.turns for segment in self.segments])

    @property
    def turn_count(self) -> int:
        """Number of turns. Unlike `len(turns)`, the count does not read all turns."""
        return sum([len(segment.turns) for segment in self.segments])

    @property
    def summaries(self) -> int:
        """Number of turns that are summaries: the last turn of a segment, if `limits.compact_at` is set."""
        return sum([bool(segment.turns) and segment.turns[-1].summary for segment in self.segments])

    @property
    def conversation(self) -> Sequence[Message]:
        """The messages that the model reads now: all `messages`, or those after the last summary."""
        first = self.segment.first_message
        return self.messages[first:] if first else self.messages

    @property
    def replies(self) -> list[int]:
        """For each closed turn of an Env's episode, the index of its message in `messages`.

        A prompt may hold assistant messages, too, which precede the model's messages.
        """
        places, counts = list[int](), dict[int, int]()
        for segment in self.segments:
            counts[segment.first_message] = counts.get(segment.first_message, 0) + len(segment.said)
        for (first, count), stop in zip(counts.items(), [*counts, len(self.messages)][1:], strict=True):
            replies = [i for i in range(first, stop) if self.messages[i].get("role") == "assistant"]
            places += replies[len(replies) - count :]
        return places

    @property
    def actions(self) -> list[Action]:
        """The action of each closed turn, with its tokens. Each access makes new objects."""
        return self._in_time([segment.actions for segment in self.segments])

    @property
    def said(self) -> list[Action]:
        """The action of each closed turn, without its tokens."""
        return self._in_time([segment.said for segment in self.segments])

    @property
    def last_action(self) -> Action | None:
        return next((action for segment in reversed(self.segments) if (action := segment.last_action)), None)

    @property
    def final(self) -> Action | None:
        """The last action of the last segment, without tokens. A summary does not count. For an agent, the last action
        that the client received."""
        for segment in reversed(self.segments):
            masked = "undelivered" in segment.ledger.masked  # usually not, and then no span is read
            lost = {span.turn for span in segment.spans if span.masked == "undelivered"} if masked else ()
            answers = [(turn, action) for turn, action in enumerate(segment.said) if not segment.turns[turn].summary]
            received = [action for turn, action in answers if turn not in lost]
            if actions := received or [action for _, action in answers]:
                return actions[-1]
        return None

    @property
    def answer(self) -> str:
        """The content of `final`; "" without an action. For an agent, the last content of the main conversation."""
        final = self.final
        return "" if final is None else final.content

    @property
    def step_rewards(self) -> list[float]:
        """The rewards of the steps in order. Steps without a reward are left out."""
        return [turn.reward for turn in self.turns if turn.reward is not None]

    @property
    def branches(self) -> list[str]:
        """The names of the branches of an agent's session, in the order of the segments. The main conversation has no
        name."""
        return list(dict.fromkeys(segment.branch for segment in self.segments if segment.branch))

    def paid_as(self, segment: Segment) -> str:
        """The key in `branch_rewards` of the reward for a segment: the branch, or else the role. "" if the segment gets
        `reward`."""
        names = (segment.branch, role_of(segment.branch))
        return next((name for name in names if name in self.branch_rewards), "")

    @property
    def earned(self) -> dict[str, float | None]:
        """The rewards of the segments by the names of `paid_as`. The name "" stands for `reward`."""
        names = dict.fromkeys(map(self.paid_as, self.segments))
        return {name: self.branch_rewards[name] if name else self.reward for name in names}

    @property
    def weight_versions(self) -> list[str]:
        """The version of the weights of each generation, in order."""
        return [version for turn in self.turns for version in turn.weight_versions]

    @property
    def truncated(self) -> bool:
        """Whether a bound on tokens or time ended the episode, not the model or the Env."""
        return self.stop is not None and self.stop.truncated

    @property
    def is_valid(self) -> bool:
        """Whether the reward is evidence about the policy: the episode neither failed nor was aborted."""
        return self.stop not in (StopReason.FAILED, StopReason.ABORTED)

    @property
    def tool_call_count(self) -> int:
        """How many calls named an existing tool."""
        names = {spec.get("function", spec).get("name") for spec in self.tools}
        return sum(name in names for segment in self.segments for turn in segment.turns for name in turn.calls)

    @property
    def bad_calls_in_a_row(self) -> int:
        """Number of consecutive turns with a wrong tool call, up to the last turn."""
        return sum(1 for _ in takewhile(lambda turn: turn.bad_call is not None, self._latest_turns()))

    def _latest_turns(self) -> Iterator[Turn]:
        """The turns from the last to the first."""
        if self.order:
            return reversed(self.turns)
        return (turn for segment in reversed(self.segments) for turn in reversed(segment.turns))

    @property
    def prefix_breaks(self) -> int:
        """Number of generations whose prompt is no longer the beginning of the segment. The count reads all tokens.

        The number is above 0 only if tokens were rewritten after an engine had received the tokens. Generations from
        `from_json` are not counted.
        """
        return sum(segment.prefix_breaks for segment in self.segments)

    def by_segment(self, of_turns: Sequence[T]) -> Iterator[tuple[Segment, Sequence[T]]]:
        """Yield each segment with the values of its turns. `of_turns` has a value for each turn of the episode, in
        order of time."""
        for segment, places in zip(self.segments, self._places(), strict=True):
            yield segment, [of_turns[place] for place in places]

    def _places(self) -> list[Sequence[int]]:
        """For each segment, the indices of its turns in order of time."""
        first, of_segments = 0, list[Sequence[int]]()
        for segment in self.segments:
            places = range(first, first + len(segment.turns))
            of_segments.append([self.order[turn] for turn in places] if self.order else places)
            first += len(segment.turns)
        return of_segments

    def _in_time(self, of_segments: Sequence[Sequence[T]]) -> list[T]:
        """A list of the turns' values in order of time, from a list for each segment. Open turns may lack a value."""
        if not self.order:
            return [value for values in of_segments for value in values]
        placed = zip(self._places(), of_segments, strict=True)
        return [value for _, value in sorted(chain(*(zip(*pair, strict=False) for pair in placed)), key=itemgetter(0))]

    # Growing

    def append_prompt(self, rendered: Rendered, messages: Sequence[Message] = ()) -> None:
        """Append the first tokens of the episode. They are not part of the response."""
        self.segment.append_prompt(rendered)
        self.messages.extend(messages)
        self._count_special(rendered.special)
        self.checks += rendered.checks

    def append_model(self, generation: Generation, *, prompt_tokens: int | None = None, seconds: float = 0.0) -> None:
        """Append sampled tokens, loss_mask 1. After an abort the tokens extend the open turn.

        Raises LedgerError if tokens and log_probs differ in length, for an invalid value, or if `prompt_tokens` (the
        engine's input) differs from all tokens so far.
        """
        self.segment.append_model(generation, prompt_tokens=prompt_tokens, seconds=seconds)

    def append_action(self, action: Action) -> None:
        """Close the open turn with its action. Raises LedgerError if no turn is open, or if the tokens differ."""
        self.segment.append_action(action)
        if action.error is not None and self.tools:  # without tools, nothing is a tool call
            self.segment.turns[-1].bad_call = action.error.kind
        self.messages.append(assistant_message(action))

    def append_observation(self, rendered: Rendered, messages: Sequence[Message] = ()) -> None:
        """Append the tokens of template and environment after a turn: loss_mask 0, log_probs 0.0."""
        self.segment.append_observation(rendered)
        self.messages.extend(messages)
        if rendered.cut:
            self.info["observation_tokens_cut"] = self.info.get("observation_tokens_cut", 0) + rendered.cut
        self._count_special(rendered.special)
        self.checks += rendered.checks

    def _count_special(self, count: int) -> None:
        if count:
            self.info["special_tokens"] = self.info.get("special_tokens", 0) + count

    def append_unread(self, observed: Observed) -> None:
        """Append the Env's last observation, which the model does not read, as messages without tokens."""
        messages = [{"role": "user", "content": observed.text}] if isinstance(observed, Raw) else observed
        self.messages.extend(messages)
        self.unread += len(messages)

    def begin_segment(self, rendered: Rendered, messages: Sequence[Message] = (), *, summarized: bool = False) -> None:
        """Continue in a new segment with another prompt. The segment so far is trained unchanged.

        `rendered` is the whole next prompt. Earlier turns in the prompt are not trained again. `summarized`: the prompt
        holds only `messages`, after a summary of all messages so far. Raises LedgerError if no turn was closed after
        the last prompt.
        """
        last = self.segment
        require(bool(last.turns) and not last.open, "a segment ends with a turn that an action has closed")
        fresh = Segment()
        fresh.append_prompt(rendered)
        fresh.first_message = len(self.messages) if summarized else last.first_message
        self.segments.append(fresh)
        self.messages.extend(messages)
        # The prompt holds messages that were counted before.
        self._count_special(max(rendered.special - self.info.get("special_tokens", 0), 0))
        self.checks += rendered.checks

    def mask(self, reason: MaskReason, *, turn: int | None = None) -> None:
        """Exclude the sampled tokens of one turn, or of all turns, from the loss. A masked token keeps its first
        reason."""
        if turn is None:
            for segment in self.segments:
                segment.mask(reason)
        elif 0 <= turn < self.turn_count:
            place = self.order.index(turn) if self.order else turn
            for segment in self.segments:
                if place < len(segment.turns):
                    segment.mask(reason, turn=place)
                    break
                place -= len(segment.turns)

    def mask_where(self, loss_mask: Sequence[int], reason: MaskReason) -> None:
        """Exclude the sampled tokens of the last segment whose `loss_mask` is 0 from the loss.

        The shape is [response_length]. Partly masked spans are split. Raises LedgerError if the lengths differ.
        """
        self.segment.mask_where(loss_mask, reason)

    def verify(self) -> None:
        """Check every invariant over every token, in O(tokens). Raises LedgerError for the first broken invariant."""
        for segment in self.segments:
            segment.verify()

    # Serialising

    def to_json(self) -> dict[str, JSON]:
        """The trajectory for `json.dumps`, with a schema version and without the engine's own metadata.

        The top level holds the last segment, and the turns and actions of all segments, segment by segment. The other
        segments are under "earlier". "order" has each turn's index in order of time, if that order differs.
        """
        *earlier, last = [segment.to_json() for segment in self.segments]
        first = sum(len(segment["turns"]) for segment in earlier)
        return {
            "version": SCHEMA_VERSION,
            "session_id": self.session_id,
            "task": _task_to_json(self.task),
            "tools": list(self.tools),
            **last,
            "spans": _from_turn(last["spans"], first),
            "turns": [turn for segment in (*earlier, last) for turn in segment["turns"]],
            "messages": [dict(message) for message in self.messages],
            "unread": self.unread,
            "actions": [action for segment in (*earlier, last) for action in segment["actions"]],
            "earlier": earlier,
            **({"order": list(self.order)} if self.order else {}),
            **({"seat": self.seat} if self.seat else {}),
            "reward": self.reward,
            "reward_parts": dict(self.reward_parts),
            **({"branch_rewards": dict(self.branch_rewards)} if self.branch_rewards else {}),
            "stop": self.stop,
            "failure": asdict(self.failure) if self.failure else None,
            "info": to_json_lossy(self.info),
            "checks": asdict(self.checks),
            **({} if self.session is None else {"session": to_json_lossy(self.session)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Self:
        """Read the output of `to_json`. Raises LedgerError for a broken invariant, ValueError for another version."""
        version = data.get("version") if isinstance(data, Mapping) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"trajectory schema version {version!r}; this agentrl reads {SCHEMA_VERSION}")
        self = cls(_task_from_json(data["task"]), session_id=data["session_id"], tools=data["tools"])
        earlier = data.get("earlier", ())
        first = sum(len(segment["turns"]) for segment in earlier)
        last = {
            **data,
            "spans": _from_turn(data["spans"], -first),
            "turns": data["turns"][first:],
            "actions": data["actions"][sum(len(segment["actions"]) for segment in earlier) :],
        }
        shown_images = (image for message in data["messages"] for image in images_in(message.get("content")))
        images = {image.digest: image for image in shown_images}
        self.segments = [Segment.from_json(segment, images) for segment in (*earlier, last)]
        self.order, self.seat = data.get("order", ()), data.get("seat", "")
        self.messages, self.unread = list(data["messages"]), data.get("unread", 0)
        self.reward, self.reward_parts = data["reward"], data["reward_parts"]
        self.branch_rewards = data.get("branch_rewards", {})
        self.stop = StopReason(data["stop"]) if data["stop"] is not None else None
        self.failure = Failure(**data["failure"]) if data["failure"] else None
        self.info, self.session = dict(data["info"]), data.get("session")
        self.checks = CheckCounts(**data.get("checks", {}))
        return self


def role_of(branch: str) -> str:
    """The role of a branch: the part of the name before the first slash. "" for the main line."""
    return branch.partition("/")[0]


def total_ledger(segments: Iterable[Segment | Trajectory]) -> Ledger:
    """The sum of the ledgers of many segments. For an episode: `total_ledger(trajectory.segments)`."""
    return sum((segment.ledger for segment in segments), Ledger())


def assistant_message(action: Action) -> Message:
    """The chat message of an action, in the spelling of data sets, without unreadable calls."""
    message: dict[str, JSON] = {"role": "assistant", "content": action.content}
    if action.reasoning is not None:
        message["reasoning_content"] = action.reasoning
    if calls := [call for call in action.calls if call.error is None]:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in calls
        ]
    return message


def _from_turn(spans: Sequence[Mapping[str, JSON]], first: int) -> list[dict[str, JSON]]:
    """The spans with `first` added to their turn numbers."""
    return [{**span, "turn": span["turn"] + first} for span in spans]


def _task_to_json(task: Task) -> dict[str, JSON]:
    prompt = {"raw": task.prompt.text} if isinstance(task.prompt, Raw) else task.prompt
    data = {field.name: getattr(task, field.name) for field in fields(task)}
    json: dict[str, JSON] = to_json_lossy({**data, "prompt": prompt})
    return json


def _task_from_json(data: Mapping[str, JSON]) -> Task:
    prompt = data["prompt"]
    prompt = Raw(prompt["raw"]) if isinstance(prompt, dict) else prompt
    return Task(**{**data, "prompt": prompt, "tools": tuple(data["tools"])})
