"""One chat template with one tokenizer: text out of messages, tokens out of text, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jinja2 import TemplateError as JinjaError

from agentrl.errors import TemplateError
from agentrl.types import JSON, Message, ToolSpec

RENDER_ERRORS = (JinjaError, TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What a template in trouble raises: its own raise_exception, the sandbox, or Python inside an expression."""


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """`source` is Jinja text; it is rendered by the tokenizer's own machinery, which compiles it once."""

    tokenizer: Any
    source: str
    tools: tuple[ToolSpec, ...] = ()
    kwargs: Mapping[str, JSON] = field(default_factory=dict)
    special_ids: frozenset[int] = frozenset()
    wants_list: bool = False
    """Without tools it must be given an empty list: it loops over `tools` unasked."""

    @classmethod
    def of(cls, tokenizer: Any, source: str | None, tools: Sequence[ToolSpec], kwargs: Mapping[str, JSON]) -> Template:
        """Resolve the template's text (a tokenizer may have one for tools, one without). Raises TemplateError."""
        if source is None and not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                f"{name_of(tokenizer)}: the tokenizer has no chat template; add chat_template.jinja to its folder "
                "or pass chat_template="
            )
        source = tokenizer.get_chat_template(source, tools=list(tools) or None)
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        template = cls(
            tokenizer, source, tuple(tools), dict(kwargs), frozenset(special | set(tokenizer.all_special_ids))
        )
        if not tools and template.try_render([{"role": "user", "content": "."}]) is None:
            return replace(template, wants_list=True)
        return template

    def render(self, messages: Iterable[Message], *, generation_prompt: bool = False) -> str:
        """The conversation as text. Raises TemplateError with the template's own words."""
        try:
            text: str = self.tokenizer.apply_chat_template(
                [plain_message(message) for message in messages],
                tools=list(self.tools) or ([] if self.wants_list else None),
                chat_template=self.source,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.kwargs,
            )
        except RENDER_ERRORS as exc:
            said = " ".join(str(exc).split())
            raise TemplateError(f"the chat template of {self.name} refuses this conversation: {said}") from exc
        return text

    def try_render(self, messages: Iterable[Message], *, generation_prompt: bool = False) -> str | None:
        """As `render`, but None where the template refuses: the answer to a probe."""
        try:
            return self.render(messages, generation_prompt=generation_prompt)
        except TemplateError:
            return None

    def encode(self, text: str, *, after: str = "") -> list[int]:
        """Tokens of `text`; nothing is added, markers in the text become special tokens.

        `after` is the special token that stands before the text: it is encoded along and taken off again, because some
        special tokens swallow the whitespace that follows them.
        """
        if not text:
            return []
        if not text.isascii():  # half a surrogate pair, as a decoder of broken bytes may leave, cannot be encoded
            text = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self.tokenizer.encode(after + text, add_special_tokens=False)
        if not after:
            return ids
        left: list[int] = self.tokenizer.encode(after, add_special_tokens=False)
        if ids[: len(left)] == left:
            return ids[len(left) :]
        return self.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def special_in(self, text: str, *, last: bool = False) -> tuple[str, int] | None:
        """The first (or last) special token in the text, as (its text, its id)."""
        ids = self.encode(text)
        for token in reversed(ids) if last else ids:
            if token in self.special_ids:
                return self.decode([token]), token
        return None

    def bind(self, tools: Sequence[ToolSpec]) -> Template:
        """The same text and arguments with other tools."""
        return replace(self, tools=tuple(tools))

    @property
    def name(self) -> str:
        """What error messages call it."""
        return name_of(self.tokenizer)


def name_of(tokenizer: Any) -> str:
    """The folder or hub name of a tokenizer, or its class."""
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


def plain_message(message: Message) -> dict[str, Any]:
    """A message in the one form that most templates take.

    Content is never None, `tool_calls` is absent rather than empty (some templates test for the key), and arguments
    are a mapping (most templates write them as JSON themselves).
    """
    plain = {**message, "content": "" if message.get("content") is None else message["content"]}
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or call)
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError:
            return {**call}  # not JSON: the template must take it as it stands, or say why not
    return {**call, "function": function} if "function" in call else function
