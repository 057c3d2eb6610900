"""The Renderer: one certified template, bound to an episode's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render.base import Certificate, Rendered, Renderer
from agentrl.render.cache import Cache, fingerprint, key_of
from agentrl.render.formats.json_calls import CONVENTION
from agentrl.render.learn.calls import derive, known_call
from agentrl.render.learn.forms import settle
from agentrl.render.learn.probe import QUESTION, SAID, TOOL
from agentrl.render.learn.profile import Profile
from agentrl.render.prove.certify import certify
from agentrl.render.read.calls import Block
from agentrl.render.read.parse import Parser, began_thinking
from agentrl.render.template import Template
from agentrl.render.turns import Context, Turns, spans
from agentrl.types import JSON, Action, FinishReason, Message, Observation, Raw, ToolSpec


def load_renderer(
    tokenizer: Any,
    *,
    tools: Sequence[ToolSpec] = (),
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, JSON] | None = None,
) -> Renderer:
    """Probe and certify a tokenizer's chat template; cached, so that loading again costs nothing.

    `tokenizer` is a transformers tokenizer, `chat_template` Jinja text that replaces its own. Raises TemplateError
    where there is no template, where it cannot be continued (the message shows the case), or where there are tools and
    no calls could be read.
    """
    return TemplateRenderer(tokenizer, chat_template, tools, chat_template_kwargs or {}, Cache(_BOUND_KEPT))


class TemplateRenderer:
    """What `load_renderer` returns; see the protocol `Renderer` for what its methods promise."""

    def __init__(
        self,
        tokenizer: Any,
        source: str | None,
        tools: Sequence[ToolSpec],
        kwargs: Mapping[str, JSON],
        bound: Cache[TemplateRenderer],
    ) -> None:
        self._tokenizer, self._source, self._kwargs, self._bound = tokenizer, source, dict(kwargs), bound
        template = Template.of(tokenizer, source, tools, kwargs)
        key = key_of(fingerprint(tokenizer), template.source, kwargs)
        turns, parser, self.certificate = _PROBED.get(key, lambda: _probe(template.bind([TOOL])))
        if tools and not parser.reads_calls:
            raise TemplateError(
                f"the chat template of {template.name} writes tool calls that cannot be read back "
                f"({_unread(turns)!r}): use it without tools, or give a template that writes calls in a known form"
            )
        self._parse = parser.bind(tools)
        self._turns = replace(turns, template=replace(template, forms=turns.template.forms))
        self.stop_token_ids = turns.profile.stop_token_ids

    def bind(self, tools: Sequence[ToolSpec] = (), **template_kwargs: JSON) -> Renderer:
        """Keyword arguments are added to those given so far; the tools replace those given so far."""
        kwargs = {**self._kwargs, **template_kwargs}
        return self._bound.get(
            key_of(tools, kwargs),
            lambda: TemplateRenderer(self._tokenizer, self._source, tools, kwargs, self._bound),
        )

    def prompt(self, observation: Observation) -> Rendered:
        """Spans: the messages are "observation", the generation prompt is "prompt"; Raw is all observation."""
        template = self._turns.template
        if isinstance(observation, Raw):
            tokens = template.encode(observation.text)
            opening = self._turns.profile.thinking.open
            thinking = observation.text.rstrip().endswith(opening)  # a mention of the marker opens nothing
            return Rendered(tuple(tokens), spans(("observation", len(tokens))), thinking)
        messages = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
        text = template.render(messages, generation_prompt=True)
        bare = template.render(messages)
        asked = text[len(bare) :] if text.startswith(bare) else ""
        return self._turns.assemble("", text[: len(text) - len(asked)], asked)

    def parse(
        self,
        tokens: Sequence[int],
        finish_reason: FinishReason,
        matched: int | str | None = None,
        *,
        thinking: bool = False,
    ) -> Action:
        return self._parse(tokens, finish_reason, matched, thinking)

    def bridge(
        self, history: Sequence[Message], action: Action, new: Sequence[Message], *, budget: int | None = None
    ) -> Rendered:
        """What is needed of `history` certification has found out (see `turns.Context`): mostly nothing. Raises
        TemplateError rather than lose a message."""
        if not self.certificate.capabilities["tool_results"] and any(m.get("role") == "tool" for m in new):
            raise TemplateError(
                f"the chat template of {self._turns.template.name} cannot carry tool results: answer as the user"
            )
        return self._turns.bridge(history, action, new, budget)

    def text(self, raw: Raw, action: Action, *, budget: int | None = None) -> Rendered:
        """A turn that the model closed is reopened: its stop token stays sampled, and what the template writes between
        it and a next assistant turn (the rest of the close, a generation prompt) comes before the text."""
        turns, marks = self._turns, self._turns.profile.thinking
        tokens, cut = turns.template.encode(raw.text), 0
        if budget is not None and len(tokens) > budget:
            text, cut = turns.shorten(raw.text, tokens, budget)
            tokens = turns.template.encode(text)
        if not turns.closed(action):
            thinking = marks.left_open(raw.text, marks.left_open(action.text, began_thinking(action, marks)))
            return Rendered(tuple(tokens), spans(("observation", len(tokens))), thinking, cut)
        opened = turns.reopen(action)
        lengths = [(span.kind, span.stop - span.start) for span in opened.spans]
        return Rendered(
            (*opened.tokens, *tokens),
            spans(*lengths, ("observation", len(tokens))),
            marks.left_open(raw.text, opened.thinking),
            cut,
        )

    def encode(self, message: Message) -> list[int]:
        return self._turns.template.encode(self._turns.sampled(message))

    def decode(self, tokens: Sequence[int]) -> str:
        return self._turns.template.decode(tokens)


_BOUND_KEPT, _PROBED_KEPT = 256, 32
_PROBED: Cache[tuple[Turns, Parser, Certificate]] = Cache(_PROBED_KEPT)


def _probe(template: Template) -> tuple[Turns, Parser, Certificate]:
    """Everything that does not depend on an episode's tools."""
    template = settle(template)
    turns = Turns(template, Profile.of(template), Context())
    block = _block(turns)
    turns, certificate = certify(turns, block)
    parser = Parser(template, block, turns.profile.thinking, turns.profile.stop_token_ids, _frames(turns))
    return turns, parser, certificate


def _block(turns: Turns) -> Block | None:
    """How the template spells calls; None if it spells them in a way that cannot be read back."""
    profile = turns.profile
    if profile.called is None:
        return Block(CONVENTION)
    stop = profile.called.sampled_stop

    def sampled(message: Message) -> str:
        return profile.thinking.behind(turns.sampled(message).removesuffix(stop))

    return derive(turns.template, sampled, profile.parallel_calls, SAID if profile.calls_need_content else "")


def _frames(turns: Turns) -> list[str]:
    """What the template writes around content, the longest first."""
    profile = turns.profile
    before = turns.sampled({"role": "assistant", "content": SAID}).partition(SAID)[0]
    if profile.thinking.ends_in(before) or not before.strip():
        return [profile.said.before_stop.strip()]
    bare = turns.template.render([QUESTION])
    prompt = turns.template.render([QUESTION], generation_prompt=True).removeprefix(bare).strip()
    return [prompt + before.strip(), prompt, before.strip(), profile.said.before_stop.strip()]


def _unread(turns: Turns) -> str:
    return turns.sampled(known_call(1, SAID if turns.profile.calls_need_content else ""))
