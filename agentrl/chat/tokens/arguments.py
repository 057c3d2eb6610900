"""The form in which a template writes the arguments of a call, and a grammar for arguments that obey a tool's schema.

Most templates write JSON. Some write each key and value between texts, such as Qwen3-Coder's: `<parameter=` key `>`
value `</parameter>`. In this form a text value has no quotes, and ends before the template's text after the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agentrl.render.formats.spelled import common_end, common_start
from agentrl.render.read.lexer import has_tag, is_tag, pieces
from agentrl.render.read.schema import Schema
from agentrl.types import JSON

Format: TypeAlias = dict[str, Any]
"""A format of xgrammar's structural tags."""

KEY, VALUE = "example", "value"
"""The name and the value of the argument in examples."""
_KEYS, _VALUES = ("zqkeya", "zqkeyb"), ("zqvala", "zqvalb")
_NUMBER = 7919
_ANY_KEY = {"type": "regex", "pattern": "[A-Za-z_][A-Za-z0-9_-]{0,63}"}


class Writing(Protocol):
    """The form in which a template writes the arguments of a call."""

    @property
    def example(self) -> re.Pattern[str]:
        """A pattern for the arguments {"example": "value"} in this form."""
        ...

    def form(self, schema: Mapping[str, JSON]) -> list[Format]:
        """A grammar, as a sequence of formats, for arguments that obey the schema."""
        ...


@dataclass(frozen=True, slots=True)
class JsonArguments:
    example = re.compile(r'\{\s*"example"\s*:\s*"value"\s*\}')

    def form(self, schema: Mapping[str, JSON]) -> list[Format]:
        return [{"type": "json_schema", "json_schema": dict(schema)}]


@dataclass(frozen=True, slots=True)
class PairArguments:
    """A form that writes each argument as the texts `open`, key, `between`, value, `close`."""

    open: str
    between: str
    between_other: str
    """The text in place of `between` before a value that is no text."""
    close: str
    pieces: Callable[[str], list[Format]]
    """Convert a text to formats."""
    text: Format
    """The format of a text value: any text without the template's marks."""

    @property
    def example(self) -> re.Pattern[str]:
        return re.compile(re.escape(f"{self.open}{KEY}{self.between}{VALUE}{self.close}"))

    def form(self, schema: Mapping[str, JSON]) -> list[Format]:
        """A grammar with each required key in the schema's order, and any optional keys between them. Other keys are
        allowed only if the schema names no key."""
        root = schema
        while isinstance(target := _referred(schema, root), Mapping):
            schema = target
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        elements = list[Format]()
        for key in (*properties, *(key for key in required if key not in properties)):
            pair = either([self._pair(key, *value) for value in self._values(properties.get(key, {}), root)])
            elements.append(pair if key in required else {"type": "optional", "content": pair})
        if not properties and schema.get("additionalProperties") is not False:
            any_pair = sequence([*self.pieces(self.open), _ANY_KEY, *self._value(self.between, self._text({}))])
            elements.append({"type": "star", "content": any_pair})
        return elements

    def _pair(self, key: str, between: str, value: Format | None) -> Format:
        return sequence([*self.pieces(self.open + key), *self._value(between, value)])

    def _value(self, between: str, value: Format | None) -> list[Format]:
        return [*self.pieces(between), *([] if value is None else [value]), *self.pieces(self.close)]

    def _values(
        self, schema: Any, root: Any, seen: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, Format | None]]:
        """The possible values of an argument, each with the text before the value. None stands for an empty value."""
        keywords = schema if isinstance(schema, Mapping) else {}
        parts = _alternatives(keywords)
        if (target := keywords.get("$ref")) is not None and target not in seen:
            yield from self._values(_referred(keywords, root), root, seen | {target})
        elif parts:
            for part in parts:
                yield from self._values(part, root, seen)
        elif "const" in keywords or _list(keywords, "enum"):
            yield from map(self._constant, [keywords["const"]] if "const" in keywords else keywords["enum"])
        elif (kinds := Schema(keywords, root).kinds) is None or "string" in kinds:
            yield self.between, self._text(keywords)
        else:
            definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
            yield self.between_other, {"type": "json_schema", "json_schema": {**definitions, **keywords}}

    def _constant(self, value: JSON) -> tuple[str, Format | None]:
        text, between = (value, self.between) if isinstance(value, str) else (_json(value), self.between_other)
        return between, {"type": "const_string", "value": text} if text else None

    def _text(self, keywords: Mapping[str, Any]) -> Format:
        longest = keywords.get("maxLength")
        bounded = self.text["type"] == "any_text" and isinstance(longest, int) and longest >= 0
        return {**self.text, "max_chars": longest} if bounded else self.text


def learn_pairs(
    write: Callable[[Mapping[str, JSON]], str],
    cut: Callable[[str], list[Format]],
    marks: Mapping[int, str],
    is_mark: re.Pattern[str],
    ends: Sequence[int],
) -> PairArguments | None:
    """Learn a template's PairArguments from calls with example arguments. None if the template writes arguments in
    another form.

    `write` returns the text of a call with the arguments; each mark (a special token) is a single character that
    `is_mark` matches. `cut` converts such a text to formats. `ends` are the stop tokens.
    """
    text = _apart(write(dict(zip(_KEYS, _VALUES, strict=True))), *_KEYS, *_VALUES)
    number = _apart(write({_KEYS[0]: _NUMBER, _KEYS[1]: _VALUES[1]}), *_KEYS, str(_NUMBER), _VALUES[1])
    truth = write({_KEYS[0]: True, _KEYS[1]: _VALUES[1]})
    if text is None or number is None or text[2:] != number[2:] or text[1] != text[3]:
        return None
    head, between, middle, _, rest = text
    opening = common_end(head, middle)
    closing = common_start(middle[: len(middle) - len(opening)], rest)
    tagged = has_tag(closing) or is_mark.search(closing) is not None
    if not (tagged and between.strip()) or middle != closing + opening or f"{_KEYS[0]}{number[1]}" not in truth:
        return None
    if is_mark.search(closing):
        value: Format = {"type": "any_tokens", "exclude_tokens": sorted({*marks, *ends})}
    else:
        tags = _plain_tags((opening, closing, rest[len(closing) :]), is_mark)
        value = {"type": "any_text", "excludes": sorted({*tags, *marks.values()})}
    return PairArguments(opening, between, number[1], closing, cut, value)


def _plain_tags(texts: tuple[str, str, str], is_mark: re.Pattern[str]) -> set[str]:
    """The tags in the texts around a value that are plain text, not special tokens."""
    tags = {part.strip() for text in texts for part in pieces(text)}
    return {part for part in {*tags, texts[0].strip()} if is_tag(part) and not is_mark.search(part)}


def sequence(elements: Sequence[Format]) -> Format:
    return {"type": "sequence", "elements": list(elements)} if len(elements) > 1 else elements[0]


def either(formats: Sequence[Format]) -> Format:
    return {"type": "or", "elements": list(formats)} if len(formats) > 1 else formats[0]


def _apart(text: str, *words: str) -> list[str] | None:
    """The five texts before, between and after four words: two keys, and the value of each. None unless each word
    occurs exactly once."""
    first, second, first_value, second_value = words
    if any(text.count(word) != 1 for word in words):
        return None
    match = re.fullmatch(
        "(.*)".join(["", *map(re.escape, (first, first_value, second, second_value)), ""]), text, re.DOTALL
    )
    return list(match.groups()) if match else None


def _referred(schema: Any, root: Any) -> Any:
    """The target of a schema's reference; None without a reference."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#/"):
        return None
    for step in target[2:].split("/"):
        root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _alternatives(keywords: Mapping[str, Any]) -> list[Any]:
    """The schemas of which a value must obey one: `anyOf`, `oneOf`, or a single schema in `allOf`."""
    all_of = _list(keywords, "allOf")
    return [*_list(keywords, "anyOf"), *_list(keywords, "oneOf"), *(all_of if len(all_of) == 1 else ())]


def _list(keywords: Mapping[str, Any], name: str) -> list[Any]:
    value = keywords.get(name)
    return value if isinstance(value, list) else []


def _json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False)
