"""Data classes and type aliases shared by all packages of agentrl."""

from __future__ import annotations

import math
from array import array
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import StrEnum
from numbers import Real
from typing import Any, Literal, Self, TypeAlias, TypedDict, TypeVar

from agentrl.errors import BadCall, ConfigError, unknown_key
from agentrl.image import Image
from agentrl.plain import JSON as JSON
from agentrl.plain import text

T = TypeVar("T")

MaybeAwait: TypeAlias = T | Awaitable[T]
"""The return value of a hook: a T from a `def`, an Awaitable[T] from an `async def`."""

Message: TypeAlias = Mapping[str, Any]
"""A chat message in the form of OpenAI, chat templates and data sets: role, content, tool_calls, tool_call_id, ..."""

ToolSpec: TypeAlias = Mapping[str, Any]
"""A tool in the form of chat templates: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Text without a template: a whole prompt in `reset`, or a continuation of the model's own turn in `step`."""

    text: str
    end: str = ""
    """The last characters of `text`, such as a closing tag, that stay if `text` is cut to
    `Limits.observation_tokens`."""

    def __post_init__(self) -> None:
        if not self.text.endswith(self.end):
            raise ValueError(f"Raw: the text ends with {self.text[-len(self.end) :]!r}, not with end={self.end!r}")


Observation: TypeAlias = str | Raw | Sequence[Message]
"""Text from the environment for the model to read. A plain str is exactly one user message. A message's content may
hold Images: `{"role": "user", "content": ["What is here?", image]}`. A list of texts and Images alone is read as the
content of a user message."""

Observed: TypeAlias = Raw | Sequence[Message]
"""An Observation in normal form: a plain str or a list of texts and Images has become a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem to solve: a row of the data set."""

    prompt: Observation = ""
    label: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    tools: Sequence[ToolSpec] = ()
    """The row's own tools, in addition to the Env's."""
    id: str = ""
    seed: int = 0
    """Seed of the environment, not of sampling. All episodes of a group have the same seed, and so the same
    environment. None: the seed follows from the id, or from the content of a task without an id."""
    split: Literal["train", "eval"] = "train"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of the model. `Action.calls` includes malformed calls, in sampled order, with their `error`."""

    id: str
    name: str
    arguments: Mapping[str, JSON]
    raw: str = ""
    """The text as sampled, between the template's call markers."""
    error: str | None = None
    """Why the call cannot be executed. The model reads this instead of a result."""


FinishReason: TypeAlias = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of the model, read from its sampled tokens."""

    text: str
    """The whole turn as text, including reasoning and calls, without a final stop token."""
    content: str
    """`text` without reasoning and tool calls, stripped."""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    matched: int | str | None = None
    """The stop token or stop string at the end of the turn."""
    tokens: tuple[int, ...] = ()

    @property
    def error(self) -> BadCall | None:
        """The error of the first unreadable call. None if all calls are readable."""
        return next((BadCall("structural", call.error) for call in self.calls if call.error is not None), None)


SpanKind: TypeAlias = Literal["close", "observation", "prompt"]


@dataclass(frozen=True, slots=True)
class RenderedSpan:
    """The origin of `tokens[start:stop]` of a Rendered: the end of the model's turn, the observation, or the generation
    prompt."""

    kind: SpanKind
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RenderedImage:
    """An image in a Rendered: `tokens[start:stop]` are its pad tokens."""

    start: int
    stop: int
    image: Image

    @property
    def label(self) -> str:
        """Text for display in place of the pad tokens."""
        size = f"{self.image.width} x {self.image.height}"
        return f"[image {size}, {self.image.size / 1000:.1f} kB, {self.stop - self.start} pads]"

    def moved(self, by: int) -> RenderedImage:
        """The same image with `start` and `stop` moved by a number of tokens."""
        return RenderedImage(self.start + by, self.stop + by, self.image)


def single_pads(tokens: array[int], media: Sequence[RenderedImage]) -> array[int]:
    """Tokens with a single pad token for each image, for a server that expands the pad by itself."""
    if not media:
        return tokens
    single, position = array("i"), 0
    for medium in media:
        single += tokens[position : medium.start + 1]
        position = medium.stop
    return single + tokens[position:]


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """Counts of checks of rendered text. Metrics have the same names. A bridge is the text that a template adds after a
    turn."""

    bridges_checked: int = 0
    """Number of checked bridges: about 1 in 64 is compared with a new render, and about 1 in 64 with a render of the
    whole conversation. A bridge that the cache no longer holds counts as equal, so that a repeated run gives the same
    counts."""
    bridges_different: int = 0
    """Number of bridges that differed from the render. The rendered text was used."""

    def __add__(self, other: CheckCounts) -> CheckCounts:
        return CheckCounts(
            self.bridges_checked + other.bridges_checked, self.bridges_different + other.bridges_different
        )


@dataclass(frozen=True, slots=True)
class Rendered:
    """New tokens for the model to read; no token is sampled. `spans` partition `tokens`; empty spans are left out."""

    tokens: Sequence[int]
    spans: tuple[RenderedSpan, ...]
    thinking: bool = False
    """Whether the generation prompt left a thinking block open; `parse` needs the value."""
    cut: int = 0
    """Number of observation tokens that were dropped to fit the budget."""
    special: int = 0
    """Number of special tokens in users' text, tools and documents. A renderer made by `as_text` encodes them as text,
    any other renderer as special tokens."""
    checks: CheckCounts = CheckCounts()
    """Comparisons during the render."""
    media: tuple[RenderedImage, ...] = ()
    """The images among the tokens, in order."""


class SamplingParams(TypedDict, total=False):
    """The sampling parameters that agentrl reads, with SGLang's names."""

    temperature: float
    """0 samples greedily."""
    top_p: float
    top_k: int
    """Number of most likely tokens to sample from; -1 is unlimited."""
    max_new_tokens: int
    min_new_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logit_bias: Mapping[str, float]
    """Added to the logits, by token id as text."""
    sampling_seed: int
    """With a seed, the randomness of a token is a function of (seed, position in the sequence) alone."""
    structural_tag: str
    """A grammar for the text, as JSON of xgrammar's structural tags. Only for engines with `takes_grammars`."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The original chat message of a turn from a chat API. The turn's token ids are only an encoding of this
    message."""

    message: Message
    """content, reasoning_content and tool_calls; see `agentrl.chat.client.Speaker`."""
    sent_back: Message
    """The same message, in the form for the speaker's next turn."""
    by: Mapping[str, str] = field(default_factory=dict)
    """The author of the message: the model and its host."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """The usage that the API reported: tokens by the API's own count, and so on."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens that an engine sampled for a request. `log_probs[i]` is the natural log-prob of `tokens[i]` when it
    was sampled."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: FinishReason
    matched: int | str | None = None
    """The stop token or stop string at the end of the generation. A stop token is the last of `tokens`."""
    weight_version: str | None = None
    """The weights that sampled the last token."""
    cached_tokens: int = 0
    """Prompt tokens from the engine's prefix cache."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Other data from the engine: SGLang's `meta_info` without the log-probs (routed experts, top-p ids, ...). Never
    serialised."""
    earlier_versions: Sequence[tuple[str, int]] = ()
    """For weights that changed during the generation: each version before `weight_version`, with the number of tokens
    sampled before the version was replaced, in order."""
    said: ChatReply | None = None
    """The turn as a chat message, if a MessageEngine generated the turn."""
    constrained: Sequence[bool] = ()
    """For each token, whether a grammar has changed its probability by excluding tokens of the policy. Such tokens are
    not trained. Empty: none."""

    def versions(self) -> Iterator[tuple[str | None, int, int]]:
        """Each version with the range of its sampled tokens, in order. At least one range, possibly empty."""
        start, end, any_yet = 0, len(self.tokens), False
        for version, stop in (*self.earlier_versions, (self.weight_version, end)):
            if start < (stop := min(stop, end)):
                yield version, start, stop
                start, any_yet = stop, True
        if not any_yet:
            yield self.weight_version, 0, end


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """An Env's requests for the next generation.

    An Env cannot set temperature or grammar, because the trainer would assume another distribution.
    """

    stop: Sequence[str] = ()
    """Stop strings, added to the run's own."""
    max_tokens: int | None = None
    """Maximum number of tokens of the turn. The smallest of all budgets applies."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(string, str) and string for string in stop):
            raise ConfigError(f"{type(self).__name__}.stop must hold stop strings, not {self.stop!r:.80}")
        object.__setattr__(self, "stop", tuple(map(text, stop)))
        object.__setattr__(
            self, "max_tokens", _bound(f"{type(self).__name__}.max_tokens", self.max_tokens, "int | None")
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """The return value of `Env.step`: the response to one turn."""

    observation: Observation = ()
    _: KW_ONLY
    reward: float | None = None
    """None: this step gives no reward. The default `Env.score` adds up the rewards of all steps."""
    done: bool = False
    turn_options: TurnOptions | None = None
    """Options for the next turn only; they replace the Env's options."""
    info: Mapping[str, JSON] = field(default_factory=dict)
    next_seat: str | None = None
    """In an Env with seats: the seat whose turn begins now, after an `observe` of the seat. None: the present turn goes
    on, as after a tool call. The seat that acted reads the observation before its next turn."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """In an Env with seats: rewards by seat. Each is added to the last turn of its seat."""

    def __post_init__(self) -> None:
        empty = not (self.observation.text if isinstance(self.observation, Raw) else self.observation)
        if empty and not self.done and self.next_seat is None:
            raise ValueError("StepResult: nothing is observed and done is False; return an observation or done=True")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's result with a reward or with the end of the episode, in place of plain content."""

    content: JSON
    _: KW_ONLY
    reward: float | None = None
    done: bool = False
    """End the episode after this turn's other calls have finished."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward: a total and named parts. The trainer uses the total, and the parts are logged."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    branches: Mapping[str, float] = field(default_factory=dict)
    """For an AgentEnv: the rewards of the session's branches, by name (`solver/1`) or by role (`solver`). A branch is
    trained on its own reward. `value` is the reward of the main conversation, and of the episode in metrics and
    evaluations."""


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The Env ended the episode, or the model called no tool."""
    MAX_TURNS = "max_turns"
    """`Limits.turns` turns were taken."""
    TURN_MAX_TOKENS = "turn_max_tokens"
    """A turn reached its token budget before the model ended the turn."""
    MAX_TOKENS = "max_tokens"
    """The response tokens (sampled and observed) reached `Limits.tokens`."""
    CONTEXT_FULL = "context_full"
    """The next turn would not fit into the model's context."""
    BAD_CALLS = "bad_calls"
    """`BadCallPolicy.in_a_row` consecutive turns had a wrong tool call."""
    MAX_IMAGES = "max_images"
    """The images of the episode reached `Limits.image_pixels` or `Limits.image_bytes`."""
    DEADLINE = "deadline"
    """`Limits.episode_s` seconds passed."""
    ABORTED = "aborted"
    """The host stopped generation; the tokens so far are kept."""
    FAILED = "failed"
    """The environment broke or has a bug: see `Trajectory.failure`."""

    @classmethod
    def _missing_(cls, value: object) -> StopReason | None:
        """Accept the names of stop reasons in older trajectories."""
        old = {"turns": cls.MAX_TURNS, "turn_cut": cls.TURN_MAX_TOKENS, "tokens": cls.MAX_TOKENS}
        old |= {"context": cls.CONTEXT_FULL, "parse_errors": cls.BAD_CALLS}
        return old.get(str(value))

    @property
    def truncated(self) -> bool:
        """A bound on tokens or time ended the episode, not the model or the Env."""
        return self in _TRUNCATED


_TRUNCATED = frozenset(
    {
        StopReason.TURN_MAX_TOKENS,
        StopReason.MAX_TOKENS,
        StopReason.CONTEXT_FULL,
        StopReason.MAX_IMAGES,
        StopReason.DEADLINE,
    }
)


class _Unset(int):
    """A default value, as an int of another class: shows that the user has set no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an episode, in turns, tokens and seconds. Each is a positive number; None means no bound."""

    turns: int = _Unset(16)
    """Turns of the model. For an agent with `SessionOptions.replies`, that number is the default."""
    tokens: int | None = None
    """Response tokens, sampled and observed together; slime's --rollout-max-response-len counts the same. If thoughts
    are stripped, or after a summary (`compact_at`), each segment is counted separately."""
    max_tokens_per_turn: int | None = None
    """Sampled tokens of a turn. A turn that reaches the bound ends the episode."""
    observation_tokens: int | None = None
    """Tokens of an observation. A longer observation is cut and marked."""
    context: int | None = None
    """Prompt and response together. None takes the engine's own limit."""
    compact_at: int | None = None
    """Tokens of prompt and response after which the model is asked for a summary (`Env.ask_summary`). The episode goes
    on with the first prompt and the summary, in a new segment. Leave room for two observations, a turn and a summary.
    A summary is not counted in `turns`. None: no summaries."""
    image_pixels: int | None = 100_000_000
    """Pixels of all images of one episode: 48 screenshots of 1920 x 1080."""
    image_bytes: int | None = 1 << 26
    """Bytes of all image files of one episode."""
    episode_s: float | None = None
    """Seconds of the whole episode, with the engine's time. The finished part is scored."""
    generate_s: float | None = None
    """Seconds of a request to the engine, without the wait for new weights."""
    reset_s: float = 120.0
    """Seconds of `reset` and `tools`. If they take longer, the environment has failed."""
    step_s: float = 300.0
    """Seconds of a `step` with all tools of the turn. If a step takes longer, the environment has failed."""
    tool_s: float = 60.0
    """Seconds of a tool. After a timeout the model reads that the tool took too long. `@tool(timeout=...)` takes
    precedence."""
    score_s: float = 120.0
    """Seconds of `score`. If `score` takes longer, the environment has failed."""
    close_s: float = 30.0
    """Seconds of `close` and of the entered resources. Afterwards open resources are abandoned."""

    def __post_init__(self) -> None:
        for bound, default in _BOUNDS:
            if (value := getattr(self, bound.name)) is not default:
                object.__setattr__(self, bound.name, _bound(f"limits.{bound.name}", value, str(bound.type)))

    def turns_or(self, usual: int | None) -> int:
        """The bound on turns. If the user has not set the bound, `usual` replaces the default, unless `usual` is
        None."""
        return usual if usual is not None and isinstance(self.turns, _Unset) else int(self.turns)

    @classmethod
    def of(cls, given: Mapping[str, JSON]) -> Self:
        """The limits in a configuration. Raises ConfigError for an unknown key and for an invalid bound."""
        for key in given:
            if key not in cls.__slots__:
                raise ConfigError(unknown_key(f"limits.{key}", cls.__slots__))
        return cls(**given)


_BOUNDS = tuple((bound, bound.default) for bound in fields(Limits))


def _bound(name: str, value: Any, kind: str) -> int | float | None:
    """A positive number, whole if `kind` (the field's type) is int. None is accepted if `kind` allows it."""
    if value is None and "None" in kind:
        return None
    whole = "int" in kind
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or (whole and not number.is_integer()):
        raise ConfigError(f"{name} must be {'a whole number' if whole else 'a number'}, not {value!r}")
    if not number > 0:
        raise ConfigError(f"{name} must be positive, not {value!r}")
    if isinstance(value, _Unset):
        return value
    return int(number) if whole else number
