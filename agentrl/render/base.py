"""From messages to tokens and from sampled tokens back to an Action: the part of a chat template in an episode."""

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
    """The proof of a chat template with a tokenizer, made by probes."""

    level: Literal["exact", "keeps-history"]
    """exact: continuation equals the full render on every probe. keeps-history: the template rewrites some history,
    for example by stripping thoughts. Then the sampled tokens are kept, and `departures` names the places."""
    template_hash: str
    proved: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    milliseconds: float = 0.0
    template: str = ""
    """The template's name in error messages: the tokenizer's folder or name."""
    capabilities: dict[str, bool] = field(default_factory=dict)
    """The abilities of the template: system, tools (tools are shown), calls (calls are written, and can be read
    back), parallel_calls, tool_results, orphan_tool (a result without a call), user_after_tool, text_with_calls,
    thinking, developer (in place of the system message), later_system (after any message), users_in_a_row. With a
    model for images: images (of the user), tool_images."""
    bridges: dict[str, str] = field(default_factory=dict)
    """The source of bridges for the answer of a "user" and of a "tool". "memo": the text around the answer is
    learned, proved and checked. "render: " and a reason: every bridge is rendered."""
    depends: tuple[str, ...] = ()
    """The parts of a conversation, besides the turn and its answer, on which the text after a turn depends:
    "system", "users", "results", "ids", "turns" (earlier turns), "clock". An untraceable text counts as a
    dependence. With "users", "results", "ids" or "turns" every bridge is made from the whole conversation."""
    results: Literal["id", "place", ""] = ""
    """The link between a result and its call: the "id" of the call, or the "place" (the order of the calls). Empty
    for a template without results."""


class ImageCounter(Protocol):
    """The image side of a model, as far as tokens are concerned: see `agentrl.models.vision.Vision`."""

    pad: int
    """The token that stands for an image."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens for media. A policy must not sample these tokens."""
        ...

    def count(self, image: Image) -> int:
        """The number of pads for the image in a trained sequence. Raises ValueError for an impossible size."""
        ...


class Renderer(Protocol):
    """A chat template bound to a tokenizer and to one episode's tools. Immutable; safe to share."""

    certificate: Certificate
    stop_token_ids: frozenset[int]
    arguments: frozenset[str]
    """The names of the arguments in the template's text, such as `enable_thinking`."""
    marks: Mapping[int, str]
    """Tokens that the template writes as marks, and their texts: `<tool_call>`. The same text in other tokens is no
    mark."""
    vision: ImageCounter | None
    """The image side of the model. None for a model without images, or if images are not requested."""

    def bind(self, tools: Sequence[ToolSpec] = (), **template_kwargs: JSON) -> Renderer:
        """The same template with an episode's tools and template arguments; cached by value."""
        ...

    def as_text(self) -> Renderer:
        """The same renderer, but special tokens within messages, tools and Raw answers are encoded as text.

        So no text can forge a turn. The template's own text, and a Raw prompt, stay unchanged. Raises TemplateError if
        the tokenizer has no spelling of special tokens as text.
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
        """Read all the sampled tokens of a turn. A turn cut by length or abort has no executable calls.

        `turn` is the number of turns before this turn: equal calls of two turns have different ids.
        """
        ...

    def bridge(
        self, history: Sequence[Message], action: Action, new: Sequence[Message], *, budget: int | None = None
    ) -> Rendered:
        """The tokens after the sampled turn: the rest of its close, the new messages, the next generation prompt.

        `history` holds the messages up to and including the sampled turn. Roles, names, ids and counts are read from
        the history. The history is rendered only if the certificate names a dependence, and for a comparison at 1
        bridge in 64. `budget` is the limit of the observation's tokens: a longer observation is cut with a visible
        mark.
        """
        ...

    def text(self, raw: Raw, action: Action, *, history: Sequence[Message] = (), budget: int | None = None) -> Rendered:
        """Continue the model's own turn with text. If the model had closed the turn, the tokens of the turn stay as
        sampled.

        `history` is the same as in `bridge`. A reopened turn gets the generation prompt for this history.
        """
        ...

    def encode(self, message: Message, prompt: Sequence[int] = ()) -> list[int]:
        """An assistant message as a model would sample it after the generation prompt, stop token included.

        `prompt` holds all tokens before the turn. The prompt shows an open thought, and the number of earlier calls.
        Without a prompt, the turn answers a user's first message.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens included."""
        ...
