"""A grammar for a client's demand on the form of an answer, over the tokens that the chat template would write.

The template's form of a call is read from examples, so no format is known by name. The grammar is a structural tag of
xgrammar, which SGLang takes as `structural_tag`. Marks such as `<tool_call>` are single tokens in the grammar. In a
grammar of text, a model might spell a mark out in letters, which would not count as the mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from agentrl.chat.request import Forced, RefusedError
from agentrl.chat.tokens.arguments import KEY, VALUE, Format, JsonArguments, Writing, either, learn_pairs, sequence
from agentrl.errors import TemplateError
from agentrl.render.base import Renderer
from agentrl.render.read.lexer import is_tag, pieces
from agentrl.types import JSON, ToolSpec

_TEXT, _THOUGHT = "EXAMPLE-TEXT", "EXAMPLE-THOUGHT"
_PRIVATE = 0xF0000
"""In examples, each mark is a single character of a private plane of Unicode, with this code point plus the index of
the mark."""
_MARK = re.compile("([\U000f0000-\U000ffffd])")
_REMEDY = "ask for the form in the prompt (an AgentEnv may set SessionOptions(forced='ignore'))"


def structural_tag(
    renderer: Renderer, forced: Forced, tools: Sequence[ToolSpec], *, thinking: bool, continued: bool = False
) -> str:
    """The grammar as JSON. `thinking`: the prompt has opened a thought. `continued`: the prompt ends within the
    answer's text.

    Raises RefusedError if the template writes arguments neither as JSON nor as keys and values between tags.
    """
    examples = _Examples(renderer, tuple(renderer.marks), continued)
    answers = []
    if forced.schema is not None:
        answers.append(examples.text({"type": "json_schema", "json_schema": dict(forced.schema)}, thinking))
    if forced.text is not None:
        answers.append(examples.text(dict(forced.text), thinking))
    if forced.names:
        answers.append(examples.calls(forced, tools, thinking))
    return json.dumps({"type": "structural_tag", "format": either(answers)})


def end_of_call(renderer: Renderer, tools: Sequence[ToolSpec]) -> str | None:
    """The text at the end of each call, such as `</tool_call>`. None if the template has no such mark."""
    try:
        return _Examples(renderer, tuple(renderer.marks)).end_of_call(tools[0]["function"]["name"])
    except RefusedError:
        return None


@dataclass(frozen=True, slots=True)
class _Shell:
    """The template's text around the arguments of calls of a tool."""

    before: str
    """The text before the first call, such as an empty thought."""
    begin: str
    end: str
    between: str | None
    """The text between two calls. None if the template writes at most a single call per turn."""


@dataclass(frozen=True, slots=True)
class _Examples:
    """Example answers in the template's form, from which the parts of the grammar are made."""

    renderer: Renderer
    marks: Sequence[int]
    continued: bool = False
    """Whether the prompt ends within the answer's text. Then no thought comes before the demanded form."""

    def text(self, content: Format, thinking: bool) -> Format:
        """A grammar for an answer without calls."""
        message: dict[str, JSON] = {"role": "assistant", "content": _TEXT}
        before = self._written(message).partition(_TEXT)[0]
        rest = self._after_thought(message)
        thought = None if rest is None else (rest[0], rest[1].partition(_TEXT)[0])
        return self._with_thought(thought, before, [content], thinking)

    def end_of_call(self, name: str) -> str | None:
        """The last tag that the template writes after a call. None without such a tag."""
        writing = self._writing(name)
        single, middle = self._written(_message(name, 1)), self._middle(name, writing)
        calls = list(writing.example.finditer(single))
        if middle is None or len(calls) != 1:
            return None
        end = _common_start(middle, single[calls[0].end() :])
        text = _MARK.sub(lambda mark: self.renderer.marks[self.marks[ord(mark[0]) - _PRIVATE]], end)
        return next(filter(is_tag, reversed(pieces(text))), None)

    def calls(self, forced: Forced, tools: Sequence[ToolSpec], thinking: bool) -> Format:
        """A grammar for a call, or for several calls if the demand allows parallel calls."""
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        writing = self._writing(forced.names[0])
        shells = {name: self._shell(name, writing) for name in forced.names}
        forms = [
            sequence(
                [
                    *self._pieces(shell.begin),
                    *writing.form(schemas.get(name) or {"type": "object"}),
                    *self._pieces(shell.end),
                ]
            )
            for name, shell in shells.items()
        ]
        content = [either(forms)]
        name, first = next(iter(shells.items()))
        if forced.parallel and first.between is not None:
            more = sequence([*self._pieces(first.between), either(forms)])
            content.append({"type": "star", "content": more})
        return self._with_thought(self._thought_before(name, first, writing), first.before, content, thinking)

    def _with_thought(
        self, thought: tuple[str, str] | None, before: str, content: list[Format], thinking: bool
    ) -> Format:
        """A grammar for the content after a thought. If the prompt has not opened a thought, the thought is
        optional."""
        if self.continued and not thinking:
            return sequence(content)
        plain = sequence([*self._pieces(before), *content])
        if thought is None or not thought[1].strip():
            return plain
        opening, closing = ("" if thinking else thought[0]), thought[1]
        thoughtful = sequence([*self._pieces(opening), *self._until(closing), *content])
        return thoughtful if thinking else either([thoughtful, plain])

    def _until(self, closing: str) -> list[Format]:
        """Formats for any text up to the end of a thought, and for the end."""
        mark = _MARK.search(closing)
        if mark is None:
            return [{"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": closing}]
        excluded = sorted({*self.marks, *self.renderer.stop_token_ids})
        return [{"type": "any_tokens", "exclude_tokens": excluded}, *self._pieces(closing[mark.start() :])]

    def _pieces(self, text: str) -> list[Format]:
        """Formats for a text of an example. Each mark becomes a single token."""
        return [
            {"type": "token", "token": self.marks[ord(part) - _PRIVATE]}
            if _MARK.fullmatch(part)
            else {"type": "const_string", "value": part}
            for part in _MARK.split(text)
            if part
        ]

    def _written(self, message: Mapping[str, JSON]) -> str:
        """The template's text of an assistant message without the end token. Marks are private characters. Raises
        RefusedError."""
        try:
            tokens = self.renderer.encode(dict(message))
        except TemplateError as exc:
            raise RefusedError("invalid", f"the template cannot write such an answer ({exc}); {_REMEDY}") from exc
        if tokens and tokens[-1] in self.renderer.stop_token_ids:
            tokens = tokens[:-1]
        places, parts, run = {token: index for index, token in enumerate(self.marks)}, list[str](), list[int]()
        for token in tokens:
            if token in places:
                parts += [self.renderer.decode(run), chr(_PRIVATE + places[token])]
                run = []
            else:
                run.append(token)
        return "".join([*parts, self.renderer.decode(run)])

    def _writing(self, name: str) -> Writing:
        """The template's form of arguments. Raises RefusedError for an unknown form."""
        if len(JsonArguments.example.findall(self._written(_message(name, 1)))) == 1:
            return JsonArguments()
        pairs = learn_pairs(
            lambda arguments: self._written(_message(name, 1, arguments)),
            self._pieces,
            self.renderer.marks,
            _MARK,
            sorted(self.renderer.stop_token_ids),
        )
        if pairs is None:
            raise RefusedError(
                "invalid",
                "this model's template writes arguments neither as JSON nor as keys and values between tags; "
                + _REMEDY,
            )
        return pairs

    def _shell(self, name: str, writing: Writing) -> _Shell:
        single = self._written(_message(name, 1))
        matches = list(writing.example.finditer(single))
        if len(matches) != 1:
            raise RefusedError("invalid", f"the template writes calls of {name} in another way than others; {_REMEDY}")
        head, tail = single[: matches[0].start()], single[matches[0].end() :]
        middle = self._middle(name, writing)
        if middle is None:
            return _Shell("", head, tail, None)
        end = _common_start(middle, tail)
        begin = _common_start(head[::-1], middle[len(end) :][::-1])[::-1]
        if end != tail or not begin:
            return _Shell("", head, tail, None)
        return _Shell(head.removesuffix(begin), begin, end, middle[len(end) :].removesuffix(begin))

    def _middle(self, name: str, writing: Writing) -> str | None:
        """The text between the arguments of two calls. None if the template writes at most a single call per turn."""
        if not self.renderer.certificate.capabilities.get("parallel_calls"):
            return None
        two = self._written(_message(name, 2))
        matches = list(writing.example.finditer(two))
        return two[matches[0].end() : matches[1].start()] if len(matches) == 2 else None

    def _thought_before(self, name: str, shell: _Shell, writing: Writing) -> tuple[str, str] | None:
        rest = self._after_thought(_message(name, 1))
        match = None if rest is None else writing.example.search(rest[1])
        if rest is None or match is None or not rest[1][: match.start()].endswith(shell.begin):
            return None
        return rest[0], rest[1][: match.start()].removesuffix(shell.begin)

    def _after_thought(self, message: Mapping[str, JSON]) -> tuple[str, str] | None:
        """The text before and after the thought of a message. None if the template writes no thoughts."""
        if not self.renderer.certificate.capabilities.get("thinking"):
            return None
        opening, thought, rest = self._written({**message, "reasoning_content": _THOUGHT}).partition(_THOUGHT)
        return (opening, rest) if thought else None


def _message(name: str, count: int, arguments: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
    function = {"name": name, "arguments": {KEY: VALUE} if arguments is None else dict(arguments)}
    calls = [{"id": f"call0000{i}", "type": "function", "function": function} for i in range(count)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _common_start(text: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False))
    return text[: sum(1 for _ in same)]
