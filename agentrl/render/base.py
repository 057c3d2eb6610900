"""From messages to tokens and from sampled tokens back to an Action: what an episode needs of a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentrl.image import Image
from agentrl.types import (
    JSON,
    Action,
    FinishReason,
    Message,
    Observation,
    Raw,
    Rendered,
    RenderedSpan,
    SpanKind,
    ToolSpec,
)

__all__ = ["Certificate", "ImageCounter", "Rendered", "RenderedSpan", "Renderer", "SpanKind"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was proved about a chat template with this tokenizer, by probing it."""

    level: Literal["exact", "keeps-history"]
    """exact: continuation equals the full render on every probe. keeps-history: the template rewrites some history
    (for example by stripping thoughts); what was sampled is kept instead, and `departures` names the places."""
    template_hash: str
    proved: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    milliseconds: float = 0.0
    template: str = ""
    """The template's name in error messages: the tokenizer's folder or name."""
    capabilities: dict[str, bool] = field(default_factory=dict)
    """What the template can carry: system, tools (it shows them), calls (it writes them, and they can be read back),
    parallel_calls, tool_results, orphan_tool (a result without a call), user_after_tool, text_with_calls, thinking,
    developer (in place of the system message), later_system (after any message), users_in_a_row. If the model reads
    images: images (of the user), tool_images."""
    bridges: dict[str, str] = field(default_factory=dict)
    """How a bridge is made, for the answer of a "user" and of a "tool": "memo" (what the template writes around the
    answer is known, proved and checked), or "render: " and why every bridge is rendered."""
    depends: tuple[str, ...] = ()
    """What the text after a turn depends on, besides the turn and its answer: "system", "users", "results", "ids",
    "turns" (earlier ones), "clock". What the template does with a text that cannot be followed counts as well. With
    "users", "results", "ids" or "turns" every bridge is made from the whole conversation."""
    results: Literal["id", "place", ""] = ""
    """How a template shows which result belongs to which of several calls: by the "id" of the call, or by "place" (in
    the order of the calls). Empty if it carries no results."""


class ImageCounter(Protocol):
    """The image side of a model, as far as tokens are concerned: see `agentrl.models.vision.Vision`."""

    pad: int
    """The token that stands for an image."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens that a policy must not sample, because they stand for media."""
        ...

    def count(self, image: Image) -> int:
        """How many pads stand for the image in a trained sequence. Raises ValueError for an impossible size."""
        ...


class Renderer(Protocol):
    """A chat template bound to a tokenizer and to one episode's tools. Immutable; safe to share."""

    certificate: Certificate
    stop_token_ids: frozenset[int]
    arguments: frozenset[str]
    """The names of the template arguments that the template reads, such as `enable_thinking`."""
    marks: Mapping[int, str]
    """Tokens that the template writes as marks, such as `<tool_call>`, with their texts. Spelled out in other tokens,
    such a text is no mark."""
    vision: ImageCounter | None
    """The image side of the model; None if it reads text only, or is not asked to read more."""

    def bind(self, tools: Sequence[ToolSpec] = (), **template_kwargs: JSON) -> Renderer:
        """The same template with an episode's tools and template arguments; cached by value."""
        ...

    def as_text(self) -> Renderer:
        """The same, but special tokens within messages, tools and Raw answers are encoded as text.

        So no text can forge a turn. What the template itself writes, and a Raw prompt, stay as they are. Raises
        TemplateError if the tokenizer cannot do that.
        """
        ...

    def prompt(self, observation: Observation) -> Rendered:
        """The first tokens of an episode, generation prompt included. Raw is encoded unchanged."""
        ...

    def parse(
        self,
        tokens: Sequence[int],
        finish_reason: FinishReason,
        matched: int | str | None = None,
        *,
        thinking: bool = False,
        turn: int = 0,
    ) -> Action:
        """Read all the sampled tokens of one turn. A turn cut by length or abort has no executable calls.

        `turn` is the number of turns before this one: equal calls of two turns have different ids.
        """
        ...

    def bridge(
        self, history: Sequence[Message], action: Action, new: Sequence[Message], *, budget: int | None = None
    ) -> Rendered:
        """What follows the sampled turn: the rest of its close, the new messages, the next generation prompt.

        `history` holds the messages up to and including the sampled turn's; it is read for roles, names,
        ids and counts. It is rendered only if the certificate says that the text depends on it, and for one bridge in
        64, which is compared. `budget` bounds the observation's tokens: a longer one is cut with a visible mark.
        """
        ...

    def text(self, raw: Raw, action: Action, *, history: Sequence[Message] = (), budget: int | None = None) -> Rendered:
        """Continue the model's own turn with text; if the model had closed the turn, its tokens stay as sampled.

        `history` is the same as in `bridge`. A turn that is opened again gets the generation prompt that depends on it.
        """
        ...

    def encode(self, message: Message, prompt: Sequence[int] = ()) -> list[int]:
        """An assistant message as a model would sample it after the generation prompt, stop token included.

        `prompt` holds all tokens before the turn. They show whether a thought is open, and how many calls there were.
        Without them, the turn is one that answers a user's first message.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens included."""
        ...
