"""Records about a trajectory's tokens: spans of one origin, turns, and the ledger that counts every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from agentrl.plain import text, to_json_lossy
from agentrl.types import JSON, FinishReason, Generation

Source: TypeAlias = Literal["sampled", "observation", "scaffold"]
Author: TypeAlias = Literal["model", "env", "template"]
SpanType: TypeAlias = Literal["sampled", "close", "observation", "prompt"]
MaskReason: TypeAlias = Literal[
    "malformed", "off_policy", "env_failure", "overlong", "host", "dropped", "side", "undelivered", "replaced"
]
"""Why sampled tokens are not trained: unreadable turn, stale weights, broken world, over a limit, the host's wish.
`replaced`: another group took the place of their group, whose episodes all got the same reward.

Of an agent that plays by itself: a reply that it dropped, a conversation other than its main one, a reply that it never
received."""

_SOURCES: Mapping[SpanType, Source] = {
    "sampled": "sampled",
    "observation": "observation",
    "close": "scaffold",
    "prompt": "scaffold",
}
_AUTHORS: Mapping[Source, Author] = {"sampled": "model", "observation": "env", "scaffold": "template"}


@dataclass(frozen=True, slots=True)
class Span:
    """`response[start:stop]`: neighbouring tokens of one origin. `close` and `prompt` are the template's scaffold."""

    start: int
    stop: int
    turn: int
    kind: SpanType
    weight_version: str | None = None
    masked: MaskReason | None = None
    """Why these sampled tokens are not trained; None if they are."""

    @property
    def source(self) -> Source:
        return _SOURCES[self.kind]

    @property
    def trained(self) -> bool:
        return self.kind == "sampled" and self.masked is None

    @property
    def author(self) -> Author:
        return _AUTHORS[self.source]


@dataclass(slots=True)
class Turn:
    """Records about one turn besides its tokens. Seconds are wall-clock."""

    finish_reason: FinishReason = "stop"
    matched: int | str | None = None
    weight_versions: list[str] = field(default_factory=list)
    """One for each generation of the turn, or more if the weights changed in the middle of it. An abort makes it
    more than one."""
    prompt_tokens: int = 0
    """Tokens the engine was given, summed over the turn's generations."""
    cached_tokens: int = 0
    sampled_tokens: int = 0
    generate_s: float = 0.0
    env_s: float = 0.0
    calls: list[str] = field(default_factory=list)
    """Names called, in order; calls that could not be read are left out."""
    bad_call: Literal["structural", "content"] | None = None
    """Kind of the worst BadCall among its calls."""
    reward: float | None = None
    raw: str = ""
    """Raw text that continued this turn, before it was cut. No message holds it."""
    meta: list[Mapping[str, Any]] = field(default_factory=list)
    """The engine's own `meta` of each generation (top-p ids, routed experts); not serialised."""

    def add(self, generation: Generation, *, prompt_tokens: int, seconds: float) -> None:
        """Count one generation of this turn. An aborted turn has more than one."""
        self.prompt_tokens += prompt_tokens
        self.sampled_tokens += len(generation.tokens)
        self.cached_tokens += int(generation.cached_tokens)
        self.finish_reason, self.matched = generation.finish_reason, to_json_lossy(generation.matched)
        self.generate_s += seconds
        self.meta.append(generation.meta)
        versions = [version for version, _, _ in generation.versions() if version is not None]
        self.weight_versions += [text(str(version)) for version in versions]

    def to_json(self) -> dict[str, JSON]:
        """Everything except `meta`, and without an empty `raw`."""
        data = asdict(replace(self, meta=[]))
        del data["meta"]
        if not self.raw:
            del data["raw"]
        return data


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
