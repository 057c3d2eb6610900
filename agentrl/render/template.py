"""A chat template with a tokenizer: messages to text, and text to tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError

from agentrl._util.texts import text_of
from agentrl.errors import TemplateError
from agentrl.image import has_image, is_image
from agentrl.render.fast_bpe import fast_encoder_of
from agentrl.render.ids import with_named_ids, with_plain_ids
from agentrl.render.markers import GUARD, NO_MARKERS, Markers, Spelling, unescaped
from agentrl.render.moment import set_clock, strftime_now
from agentrl.render.raw import decodes_plainly
from agentrl.render.symbols import Trace
from agentrl.render.trace import clock, tracer
from agentrl.types import JSON, Message, ToolSpec

RENDER_ERRORS = (JinjaError, TypeError, ValueError, KeyError, IndexError, AttributeError)
"""The exceptions of a failing template: from its own raise_exception, from jinja2's sandbox, or from Python in an
expression."""

_SHORT, _SHORT_KEPT = 64, 256
"""Maximum length of a short text in characters, and maximum number of short texts whose tokens are cached."""

_BEFORE, _LETTER = ("\n", ")", "a"), "x"
"""Texts that are put before a text to get its tokens in the middle of a text."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""The keys of a message under which templates look for thoughts."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The form of messages that a template takes, detected by probes (`detect_message_form`)."""

    arguments_as_text: bool = False
    """Whether the template takes a call's arguments as JSON text. Otherwise the template takes a mapping."""
    silent_content: str | None = ""
    """The content to pass for a turn that has only calls."""
    reasoning_field: str = REASONING_FIELDS[0]
    name_in_id: bool = False
    """Whether the template writes a call's id, which contains the name, in place of the name (Kimi's
    `functions.lookup:0`)."""
    numbers_calls: bool = False
    """Whether the template makes the id itself, from the number of the call in the conversation."""
    plain_ids: bool = False
    """Whether the template refuses ids other than nine letters and digits, as Mistral's do."""
    no_nulls: bool = False
    """Whether the template, and so its model, leaves out null arguments."""

    def writable(self, arguments: Mapping[str, JSON]) -> dict[str, JSON]:
        """The arguments that the template writes: without nulls if `no_nulls`."""
        return _without_nulls(arguments) if self.no_nulls else dict(arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A chat template with a tokenizer. `source` is Jinja text, which the tokenizer's own code compiles and renders."""

    tokenizer: Any
    source: str
    encoder: Callable[[str], list[int]]
    """A function that encodes a text without adding tokens, see `fast_encoder_of`."""
    tools: tuple[ToolSpec, ...] = ()
    kwargs: Mapping[str, JSON] = field(default_factory=dict)
    special_ids: frozenset[int] = frozenset()
    added_ids: frozenset[int] = frozenset()
    """The ids of added tokens: the special tokens, and tokens like Qwen's `<tool_call>`."""
    wants_list: bool = False
    """Whether the template needs an empty list in place of no tools, because it loops over `tools` in any case."""
    forms: Forms = field(default_factory=Forms)
    markers: Markers = NO_MARKERS
    """Recognizes the special tokens of a text."""
    spelling: Spelling | None = None
    """Encodes special tokens within messages as text. None: they are encoded as special tokens, as in the template's
    own render."""
    image_roles: frozenset[str] = frozenset()
    """The roles whose messages may hold images, because the template writes the images there."""
    _short: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict, repr=False)
    """A cache for the tokens of short texts. Ends of turns and generation prompts, for example, repeat at every
    turn."""

    @classmethod
    def of(cls, tokenizer: Any, source: str | None, tools: Sequence[ToolSpec], kwargs: Mapping[str, JSON]) -> Template:
        """Make a Template. Without `source`, the tokenizer's template is used, which may be a separate template for
        tools. Raises TemplateError."""
        if source is None and not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                f"{name_of(tokenizer)}: the tokenizer has no chat template; add chat_template.jinja to its folder "
                "or pass chat_template="
            )
        source = tokenizer.get_chat_template(source, tools=list(tools) or None)
        added = tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        template = cls(
            *(tokenizer, source, fast_encoder_of(tokenizer), tuple(tools), dict(kwargs)),
            *(frozenset(special), frozenset(added) | special),
            markers=Markers.of(tokenizer, source, special),
        )
        if not tools and template.try_render([{"role": "user", "content": "."}]) is None:
            return replace(template, wants_list=True)
        return template

    def render(self, messages: Iterable[Message], *, generation_prompt: bool = False) -> str:
        """The conversation as text. Raises TemplateError with the template's own words."""
        try:
            if self.tells_time:
                set_clock(self.source)
            text: str = self.tokenizer.apply_chat_template(
                [self.plain(message) for message in messages]
                if self.spelling is None
                else [self._guarded(self.plain(message)) for message in messages],
                tools=self._guarded(list(self.tools)) or ([] if self.wants_list else None),
                chat_template=self.source,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.kwargs,
            )
        except RENDER_ERRORS as exc:
            reason = " ".join(str(exc).split())
            raise TemplateError(f"the chat template of {self.name} {_verdict(exc)}: {reason}") from exc
        return text if self.spelling is None else unescaped(text)

    def traced(
        self,
        messages: Iterable[Message],
        trace: Trace,
        *,
        generation_prompt: bool = False,
        symbolic_clock: bool = True,
    ) -> str:
        """As `render`, for messages with symbols of `trace`; returns a Symbol. Special tokens in symbols are not
        guarded.

        With `symbolic_clock` the time is a symbol, too.

        Raises UntraceableError, or the template's error.
        """
        plain = [self.plain(message) for message in messages]
        tools = self._guarded(list(self.tools)) or ([] if self.wants_list else None)
        variables = {
            "messages": [{key: value for key, value in fields.items() if value is not None} for fields in plain],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": generation_prompt,
            "strftime_now": clock(trace) if symbolic_clock else strftime_now,
            **self.tokenizer.special_tokens_map,
            **self.kwargs,
        }
        return tracer(self.source)(variables)

    def _guarded(self, value: Any) -> Any:
        """A message, or tools, with guards in special tokens if special tokens must become text."""
        if self.spelling is None:
            return value
        exempt = self.spelling.markers.turn_markers if _of_assistant(value) else ()
        return self.spelling.markers.guarded(value, exempt)

    def count_special(self, values: Sequence[Any]) -> int:
        """The number of special tokens in texts, tools, and messages of all roles but the assistant's."""
        return sum(self.markers.count(value) for value in values if not _of_assistant(value))

    def guarded(self, text: str) -> str:
        """Text of a message, prepared for `encode`."""
        return text if self.spelling is None else self.spelling.markers.guarded(text)

    def try_render(self, messages: Iterable[Message], *, generation_prompt: bool = False) -> str | None:
        """Like `render`, but returns None if the template fails."""
        try:
            return self.render(messages, generation_prompt=generation_prompt)
        except TemplateError:
            return None

    def encode(self, text: str, *, after: str = "") -> list[int]:
        """The tokens of `text`, without added tokens. Markers in the text become special tokens.

        `after` is the special token before the text. Some special tokens swallow the whitespace that follows, so the
        text is encoded together with `after`, and the token is removed again.
        """
        if len(text) > _SHORT:
            return self._encode(text, after)
        if (text, after) not in self._short:
            if len(self._short) >= _SHORT_KEPT:
                self._short.clear()
            self._short[text, after] = tuple(self._encode(text, after))
        return list(self._short.get((text, after)) or self._encode(text, after))

    def _encode(self, text: str, after: str) -> list[int]:
        if not text:
            return []
        if not text.isascii():  # half a surrogate pair, as a decoder of broken bytes may leave, cannot be encoded
            text = text.encode("utf-8", "replace").decode("utf-8")
        if self.spelling is not None and GUARD in text:
            return self.spelling.encode(text, after)
        ids = self.encoder(after + text)
        if not after:
            return ids
        head = self.encode(after)
        if ids[: len(head)] == head:
            return ids[len(head) :]
        return self.encode(text)

    def continued(self, text: str) -> list[int]:
        """The tokens of `text` in the middle of a text.

        Many SentencePiece tokenizers put a space before their input. So a prefix is encoded before the text, and
        removed again.
        """
        if text and self._after(_BEFORE[0], _LETTER) != self.encode(_LETTER):
            tokens = next(filter(None, (self._after(before, text) for before in _BEFORE)), None)
            return tokens or self.encode(text)
        return self.encode(text)

    def _after(self, before: str, text: str) -> list[int]:
        """The tokens of `text` after the text `before`. Empty if a token extends over both texts."""
        head, ids = self.encode(before), self.encode(before + text)
        return ids[len(head) :] if ids[: len(head)] == head else []

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, including special tokens."""
        ids = list(tokens)
        if decodes_plainly(self.tokenizer.__class__):
            text: str = self.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        else:
            text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def special_in(self, text: str) -> tuple[str, int] | None:
        """The first special token in the text: its text and its id. None without a special token."""
        special = next((token for token in self.encode(text) if token in self.special_ids), None)
        return None if special is None else (self.decode([special]), special)

    def last_special(self, text: str, but: str = "") -> str:
        """The text of the last special token in the text, except the tokens in `but`. Empty without a special token."""
        others = self.special_ids.difference(self.encode(but))
        special = next((token for token in reversed(self.encode(text)) if token in others), None)
        return "" if special is None else self.decode([special])

    def named_stop(self, text: str) -> str:
        """The tokenizer's end-of-sequence token if the text contains it, else ""."""
        eos = self.tokenizer.eos_token_id
        return self.decode([eos]) if eos is not None and eos in self.encode(text) else ""

    def plain(self, message: Message) -> dict[str, Any]:
        """A message in the form that this template takes.

        Content is never None, unless the template prefers None beside calls. Without calls the key `tool_calls` is
        absent, because some templates test for the key.
        """
        plain = {**message, "content": self._content(message)}
        thoughts = [plain.pop(name) for name in REASONING_FIELDS if name in plain]
        if thoughts and thoughts[0] is not None:
            plain[self.forms.reasoning_field] = thoughts[0]
        calls = plain.pop("tool_calls", None)
        if calls:
            plain["tool_calls"] = [self._plain_call(call) for call in calls]
            plain["content"] = plain["content"] or self.forms.silent_content
        return plain

    def _content(self, message: Message) -> str | list[Mapping[str, str]]:
        """Content as text, or as parts if the template writes images."""
        content: Any = message.get("content")
        if isinstance(content, str):
            return content
        role = message.get("role")
        if not has_image(content):
            return text_of(content)
        if role not in self.image_roles:
            raise TemplateError(
                f"the chat template of {self.name} writes no images of the {role}: show them in a message of the user"
                if self.image_roles
                else f"{self.name} is not known to read images: show text only, or use a model of the Qwen-VL family "
                "(2, 2.5, 3, 3.5) whose folder has a preprocessor_config.json"
            )
        return [{"type": "image"} if is_image(part) else {"type": "text", "text": text_of([part])} for part in content]

    def _plain_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call.get("function") or call)
        arguments = function.get("arguments")
        if self.forms.arguments_as_text and not isinstance(arguments, str):
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
        elif not self.forms.arguments_as_text and isinstance(arguments, str):
            try:
                function["arguments"] = json.loads(arguments)
            except ValueError:
                return {**call}  # not JSON: the template must take it unchanged, or explain why not
        return {**call, "function": function} if "function" in call else function

    @property
    def tells_time(self) -> bool:
        """Whether the rendered text may depend on the current time."""
        return "strftime_now" in self.source

    def identified(self, messages: Sequence[Message], number: int = 0) -> Sequence[Message]:
        """The messages with ids of calls that the template takes. `number` is the number of the first call."""
        if self.forms.name_in_id:
            return with_named_ids(messages, number)
        return with_plain_ids(messages) if self.forms.plain_ids else messages

    def bind(self, tools: Sequence[ToolSpec]) -> Template:
        """The same template with other tools."""
        return replace(self, tools=tuple(tools))

    @property
    def name(self) -> str:
        """The template's name in error messages."""
        return name_of(self.tokenizer)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value if item is not None] if isinstance(value, list) else value


def name_of(tokenizer: Any) -> str:
    """The folder or hub name of a tokenizer, or else the name of its class."""
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


def _of_assistant(value: Any) -> bool:
    return isinstance(value, (dict, Mapping)) and value.get("role") == "assistant"


def breaks(error: TemplateError) -> bool:
    """Whether an error is a failure of the template, and not a refusal by its raise_exception."""
    return type(error.__cause__) is not JinjaError


def _verdict(exc: Exception) -> str:
    if isinstance(exc, SecurityError):
        return "does what the template sandbox of transformers forbids"
    if isinstance(exc, TemplateSyntaxError):
        return "is not valid Jinja"
    if isinstance(exc, UndefinedError):
        return "needs a variable that it was not given (see chat_template_kwargs)"
    return "refuses this conversation" if type(exc) is JinjaError else "breaks on this conversation"
