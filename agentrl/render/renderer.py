"""The Renderer: a certified template, bound to an episode's tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import meta

from agentrl._util.texts import texts_in
from agentrl.errors import TemplateError
from agentrl.render.base import Certificate, ImageCounter, Renderer
from agentrl.render.beginnings import remembering
from agentrl.render.cache import Cache, fingerprint, key_of
from agentrl.render.learn.probe import QUESTION, SAID
from agentrl.render.media import as_messages, fitted, image_roles, images_of, pictured
from agentrl.render.memo import VARIABLE, Memo
from agentrl.render.moment import at_one_moment
from agentrl.render.places import TurnPlace, TurnPlaces
from agentrl.render.prove.proof import Proof, hint_of, proof_of
from agentrl.render.prove.spelled_out import spelling_out
from agentrl.render.read.parse import Parser, ended_thinking
from agentrl.render.results import all_in_call_order, in_call_order
from agentrl.render.template import Template
from agentrl.render.turns import spans
from agentrl.types import JSON, Action, FinishReason, Message, Observation, Raw, Rendered, ToolSpec

_BOUND_KEPT = 256
_PROMPTS_KEPT = 16
"""Number of encoded prompts that a renderer keeps. The episodes of a group begin with the same prompt."""
_NOT_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
_REMEDIES = {
    "developer": 'send it as "system" at the start, or as "user"',
    "system": 'send it as "user"',
    "tool": 'send it as "user"',
    "user": "join it to the message before it",
}
_OTHER = 'a tool\'s result has the role "tool", and any other text the role "user"'


def load_renderer(
    tokenizer: Any,
    *,
    tools: Sequence[ToolSpec] = (),
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, JSON] | None = None,
    vision: ImageCounter | None = None,
) -> Renderer:
    """Probe and certify a tokenizer's chat template. The result is cached, so a second load is fast.

    `tokenizer` is a transformers tokenizer, `chat_template` Jinja text in place of the tokenizer's template. `vision`
    counts the tokens of images (`agentrl.models.vision.load_vision`); without `vision`, images are refused. Raises
    TemplateError if there is no template, if the template cannot be continued (the message shows the case), or if there
    are tools and no calls could be read.
    """
    kwargs = chat_template_kwargs or {}
    return TemplateRenderer(tokenizer, chat_template, tools, kwargs, Cache(_BOUND_KEPT), vision=vision)


class TemplateRenderer:
    """The result of `load_renderer`. The protocol `Renderer` documents the methods."""

    def __init__(
        self,
        tokenizer: Any,
        source: str | None,
        tools: Sequence[ToolSpec],
        kwargs: Mapping[str, JSON],
        bound: Cache[TemplateRenderer],
        as_text: bool = False,
        vision: ImageCounter | None = None,
    ) -> None:
        self._tokenizer, self._source, self._kwargs, self._bound = tokenizer, source, dict(kwargs), bound
        self._as_text, self._tools, self.vision = as_text, tools, vision
        template = Template.of(tokenizer, source, tools, kwargs)
        proof = proof_of(template, fingerprint(tokenizer))
        if tools:
            _check_tools(template, proof)
        memo = Memo.of(proof.memo)
        self.certificate = proof.certificate if memo is not None else _without_memo(proof.certificate)
        self._parse = proof.parser.bind(tools)
        template = _with_turn_markers(replace(template, forms=proof.turns.template.forms), proof.parser)
        if vision is not None:
            template = replace(template, image_roles=image_roles(template, vision.pad))
            self.certificate = _with_images(self.certificate, template.image_roles)
        if as_text:
            template = spelling_out(template, fingerprint(tokenizer))
        self.turns = replace(proof.turns, template=template, memo=memo, watch=proof.watch)
        beginning = remembering(template.encoder, tokenizer, template.source, fingerprint(tokenizer))
        opening = replace(self.turns, template=replace(template, encoder=beginning))
        self._texts_of_prompts: Cache[tuple[str, str]] = Cache(_PROMPTS_KEPT)
        self._encoded_prompt = lru_cache(_PROMPTS_KEPT)(partial(opening.assemble, ""))
        self.arguments = _arguments_of(template.source)
        self.stop_token_ids = proof.turns.profile.stop_token_ids
        special = {token: template.decode([token]) for token in template.special_ids}
        self.marks: Mapping[int, str] = {**special, **proof.parser.atoms}

    def bind(self, tools: Sequence[ToolSpec] = (), **template_kwargs: JSON) -> Renderer:
        """See `Renderer.bind`. Keyword arguments are added to earlier arguments; the tools replace earlier tools."""
        return self._variant(tools, {**self._kwargs, **template_kwargs}, self._as_text)

    def as_text(self) -> Renderer:
        """See `Renderer.as_text`. The first call in a process for a tokenizer runs a proof."""
        return self if self._as_text else self._variant(self._tools, self._kwargs, True)

    def _variant(self, tools: Sequence[ToolSpec], kwargs: Mapping[str, JSON], as_text: bool) -> TemplateRenderer:
        return self._bound.get(
            key_of(tools, kwargs, as_text),
            lambda: TemplateRenderer(self._tokenizer, self._source, tools, kwargs, self._bound, as_text, self.vision),
        )

    @at_one_moment
    def prompt(self, observation: Observation) -> Rendered:
        """See `Renderer.prompt`. The span of the messages is "observation", of the generation prompt "prompt". All of a
        Raw is "observation"."""
        template = self.turns.template
        if isinstance(observation, Raw):
            tokens = template.encode(observation.text)
            opening = self.turns.profile.thinking.open
            thinking = observation.text.rstrip().endswith(opening)  # a mention of the marker opens nothing
            return self._pictured(Rendered(tuple(tokens), spans(("observation", len(tokens))), thinking), ())
        messages = template.identified(all_in_call_order(as_messages(observation), by_id=self._by_id))
        self._check_roles(messages, lambda probe: template.render(probe, generation_prompt=True))
        text, bare = self._prompt_texts(messages)
        prompt = text[len(bare) :] if text.startswith(bare) else ""
        rendered = self._pictured(self._encoded_prompt(text[: len(text) - len(prompt)], prompt), messages)
        return replace(rendered, special=template.count_special(messages) + template.count_special(template.tools))

    def _prompt_texts(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The text of a prompt, with and without the generation prompt. The episodes of a group share both texts."""
        template = self.turns.template

        def render() -> tuple[str, str]:
            return template.render(messages, generation_prompt=True), template.render(messages)

        if template.tells_time or "random" in template.source:
            return render()
        try:
            key = json.dumps(messages)
        except (TypeError, ValueError):  # an image
            return render()
        return self._texts_of_prompts.get(key, render)

    def parse(
        self,
        tokens: Sequence[int],
        finish_reason: FinishReason,
        matched: int | str | None = None,
        *,
        thinking: bool = False,
        turn: int = 0,
    ) -> Action:
        return self._parse(tokens, finish_reason, matched, thinking, turn)

    @at_one_moment
    def bridge(
        self, history: Sequence[Message], action: Action, new: Sequence[Message], *, budget: int | None = None
    ) -> Rendered:
        """See `Renderer.bridge`. Certification has learned which part of `history` is needed (see `context.Context`):
        usually none.

        Raises TemplateError if the template would drop a message. Results are written in the order of their calls,
        unless the template writes an id at each result.
        """
        if not self.certificate.capabilities["tool_results"] and any(m.get("role") == "tool" for m in new):
            raise TemplateError(
                f"the chat template of {self.turns.template.name} cannot carry tool results: answer as the user"
            )
        new = in_call_order(new, action.calls, by_id=self._by_id)
        self._check_roles(new, lambda probe: self.turns.bridged_text(history, action, probe), "assistant")
        visible, remaining, lost = fitted(new, self.vision, budget)
        rendered = self._pictured(self.turns.bridge(history, action, visible, remaining), visible)
        special = self.turns.template.count_special(new)
        return replace(rendered, special=special, cut=rendered.cut + lost) if special or lost else rendered

    @property
    def _by_id(self) -> bool:
        return self.certificate.results == "id"

    def _check_roles(
        self, messages: Sequence[Message], write: Callable[[Sequence[Message]], str], before: str = ""
    ) -> None:
        """Raises TemplateError for a message that the template drops because of its role or its position."""
        if _is_unusual(messages, self.certificate.capabilities, before):
            _check_written(messages, write(_marked(messages)), self.turns.template.name)

    def _pictured(self, rendered: Rendered, messages: Sequence[Message]) -> Rendered:
        if self.vision is None:
            return rendered
        return pictured(rendered, images_of(messages), self.vision, self.turns.template.name)

    @at_one_moment
    def text(self, raw: Raw, action: Action, *, history: Sequence[Message] = (), budget: int | None = None) -> Rendered:
        """See `Renderer.text`. If the model has ended the turn, the stop token stays, and the turn is opened again.

        The template's text between the stop token and the next assistant turn, such as a generation prompt, comes
        before the text.
        """
        turns, marks = self.turns, self.turns.profile.thinking
        template, cut = turns.template, 0
        tokens, special = template.continued(template.guarded(raw.text)), template.count_special([raw.text])
        if budget is not None and len(tokens) > budget:
            text, cut = turns.shorten_raw(raw, budget)
            tokens = template.continued(template.guarded(text))
        if not turns.closed(action):
            thinking = marks.left_open(raw.text, ended_thinking(action, marks))
            plain = Rendered(tuple(tokens), spans(("observation", len(tokens))), thinking, cut, special)
            return self._pictured(plain, ())
        opened = turns.reopen(history, action)
        lengths = [(span.kind, span.stop - span.start) for span in opened.spans]
        plain = Rendered(
            (*opened.tokens, *tokens),
            spans(*lengths, ("observation", len(tokens))),
            marks.left_open(raw.text, opened.thinking),
            *(cut, special, opened.checks),
        )
        return self._pictured(plain, ())

    @at_one_moment
    def encode(self, message: Message, prompt: Sequence[int] = ()) -> list[int]:
        place = self._places.at(prompt) if prompt else TurnPlace()
        return self.turns.template.encode(self.turns.sampled(message, place))

    @cached_property
    def _places(self) -> TurnPlaces:
        profile, results = self.turns.profile, self.certificate.capabilities.get("tool_results", False)
        content = SAID if profile.calls_need_content else ""
        return TurnPlaces(self.turns.template, profile.thinking, content=content, results=results)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.turns.template.decode(tokens)


def _with_images(certificate: Certificate, roles: frozenset[str]) -> Certificate:
    carried = {"images": "user" in roles, "tool_images": "tool" in roles}
    return replace(certificate, capabilities={**certificate.capabilities, **carried})


def _without_memo(certificate: Certificate) -> Certificate:
    off = f"render: the variable {VARIABLE} switches the memo off"
    return replace(certificate, bridges=dict.fromkeys(certificate.bridges, off))


def _with_turn_markers(template: Template, parser: Parser) -> Template:
    """The template with the markers that occur within the model's own turns in `Markers.turn_markers`."""
    turn_markers = frozenset(text for token, text in parser.atoms.items() if token not in template.special_ids)
    return replace(template, markers=replace(template.markers, turn_markers=turn_markers))


def _check_tools(template: Template, proof: Proof) -> None:
    """Raises TemplateError if the template cannot write the tools. So a run fails at its start, and not in its first
    episode."""
    if proof.refuses_tools:
        raise TemplateError(
            f"the chat template of {template.name} cannot be used with tools: {proof.refuses_tools}; "
            "use it without tools, or give another template"
        )
    try:
        template.render([QUESTION])
    except TemplateError as exc:
        alone = [tool for tool in template.tools if template.bind([tool]).try_render([QUESTION]) is None]
        names = ", ".join((tool.get("function") or tool).get("name", "?") for tool in alone or template.tools)
        reason = " ".join(str(exc.__cause__).split())
        raise TemplateError(
            f"the chat template of {template.name} cannot write the tools {names}{hint_of(template)} ({reason})"
        ) from exc


def _is_unusual(messages: Sequence[Message], capabilities: Mapping[str, bool], before: str = "") -> bool:
    """Whether a message has a role or a position that the certificate does not cover. A template may drop such a
    message.

    `before` is the role of the message before the messages.
    """
    roles = [str(message.get("role")) for message in messages]
    return any(
        not _usual(role, last, capabilities, first=not before and i == 0)
        for i, (last, role) in enumerate(zip([before, *roles], roles, strict=False))
    )


def _usual(role: str, last: str, capabilities: Mapping[str, bool], *, first: bool) -> bool:
    needs = {
        "assistant": "",
        "user": {"user": "users_in_a_row", "tool": "user_after_tool"}.get(last, ""),
        "tool": "tool_results",
        "system": "system" if first else "later_system",
        "developer": "developer" if first else "later_system",
    }.get(role, "other")
    return not needs or (capabilities.get(needs, False) and not (role == "developer" and not first))


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with a unique word in place of each text outside the model's turns."""
    return [{**message, "content": _word(i)} if _says(message) else message for i, message in enumerate(messages)]


def _check_written(messages: Sequence[Message], text: str, template: str) -> None:
    """Raises TemplateError for the first of the `_marked` messages whose word is not in `text`."""
    for i, message in enumerate(messages):
        if _says(message) and _word(i) not in text:
            role = str(message.get("role"))
            raise TemplateError(
                f"the chat template of {template} leaves out message {i + 1} of {len(messages)}, "
                f"which has the role {role!r}: {_REMEDIES.get(role, _OTHER)}"
            )


def _word(number: int) -> str:
    return f"zqrole{number}x"


def _says(message: Message) -> bool:
    texts = "".join(texts_in(message.get("content")))
    return message.get("role") != "assistant" and bool(texts.strip())


@lru_cache(maxsize=64)
def _arguments_of(source: str) -> frozenset[str]:
    """The names of a template's free variables, such as `enable_thinking` and `date_string`.

    The conversation, the tools and the functions of transformers are not among the names. A template with a syntax
    error reads none.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        environment = _compile_jinja_template(source).environment
        names = meta.find_undeclared_variables(environment.parse(source))
    except JinjaError:
        return frozenset()
    return frozenset(name for name in names - set(environment.globals) if not name.endswith("_token")) - _NOT_ARGUMENTS
