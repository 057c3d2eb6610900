"""The interface of a chat template in an episode: messages to tokens, and sampled tokens back to an Action."""

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
    """exact: for every probe, the sampled tokens with the bridges equal the full render. keeps-history: the template
    rewrites some history, for example by stripping thoughts. The sampled tokens are kept nevertheless, and `departures`
    names the cases."""
    template_hash: str
    proved: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    milliseconds: float = 0.0
    template: str = ""
    """The template's name in error messages: the tokenizer's folder or name."""
    capabilities: dict[str, bool] = field(default_factory=dict)
    """Capability -> whether the template has it: system, tools (tools are shown), calls (calls are written, and can be
    read back), parallel_calls, tool_results, orphan_tool (a result without a call), user_after_tool, text_with_calls,
    thinking, developer (in place of the system message), later_system (after any message), users_in_a_row. With a model
    for images: images (of the user), tool_images."""
    bridges: dict[str, str] = field(default_factory=dict)
    """The source of bridges to a message of a "user" and of a "tool". "memo": the text around the message is learned,
    proved and checked. "render: " and a reason: every bridge is rendered."""
    depends: tuple[str, ...] = ()
    """The parts of a conversation, besides the turn and the new messages, on which the text after a turn depends:
    "system", "users", "results", "ids", "turns" (earlier turns), "clock". A text whose use cannot be traced counts as a
    dependence. With "users", "results", "ids" or "turns" every bridge is made from the whole conversation."""
    results: Literal["id", "place", ""] = ""
    """The link between a result and its call: the "id" of the call, or the "place" (the order of the calls). Empty
    for a template without results."""


class ImageCounter(Protocol):
    """Counts the tokens of images for a model, see `agentrl.models.vision.Vision`."""

    pad: int
    """The token that stands for an image."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Ids of media tokens. A policy must not sample media tokens."""
        ...

    def count(self, image: Image) -> int:
        """The number of pad tokens for an image in a trained sequence. Raises ValueError for an impossible size."""
        ...


class Renderer(Protocol):
    """A chat template bound to a tokenizer and to one episode's tools. Immutable; safe to share."""

    certificate: Certificate
    stop_token_ids: frozenset[int]
    arguments: frozenset[str]
    """The names of the arguments in the template's text, such as `enable_thinking`."""
    marks: Mapping[int, str]
    """Id -> text of the template's marks with a single token, such as `<tool_call>`. The same text in other tokens is
    no mark."""
    vision: ImageCounter | None
    """Counts the tokens of images. None for a model without images, or if images are not requested."""

    def bind(self, tools: Sequence[ToolSpec] = (), **template_kwargs: JSON) -> Renderer:
        """The same template with an episode's tools and template arguments. Equal arguments return a cached
        renderer."""
        ...

    def as_text(self) -> Renderer:
        """The same renderer, but special tokens within messages, tools and Raw observations are encoded as text.

        So no text can forge a turn. The template's own text and a Raw prompt are encoded as before. Raises
        TemplateError if the tokenizer has no spelling of special tokens as text.
        """
        ...

    def prompt(self, observation: Observation) -> Rendered:
        """The first tokens of an episode, including the generation prompt. Raw is encoded without the template."""
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
        """Read the Action from all sampled tokens of a turn. A turn cut by length or abort has no executable calls.

        `turn` is the number of turns before this turn. It makes the ids of equal calls in two turns different.
        """
        ...

    def bridge(
        self, history: Sequence[Message], action: Action, new: Sequence[Message], *, budget: int | None = None
    ) -> Rendered:
        """The tokens after the sampled turn: the part of the turn's end that the model did not sample, the new
        messages, the next generation prompt.

        `history` holds the messages up to and including the sampled turn. Usually only roles, names, ids and counts of
        the history are read. The history is rendered if the certificate names a dependence, and to check about 1 bridge
        in 64. `budget` is the maximum number of tokens of the observation: a longer observation is cut with a visible
        mark.
        """
        ...

    def text(self, raw: Raw, action: Action, *, history: Sequence[Message] = (), budget: int | None = None) -> Rendered:
        """The tokens for continuing the model's own turn with text. If the model has ended the turn, its tokens stay as
        sampled.

        `history` is as in `bridge`. A turn that the model has ended is opened again by the generation prompt for this
        history.
        """
        ...

    def encode(self, message: Message, prompt: Sequence[int] = ()) -> list[int]:
        """The tokens of an assistant message as a model would sample them after the generation prompt, including the
        stop token.

        `prompt` holds all tokens before the turn, which show whether a thought is open, and the number of earlier
        calls. Without a prompt, the turn follows a user's first message.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, including special tokens."""
        ...
