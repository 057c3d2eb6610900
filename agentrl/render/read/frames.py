"""Frames: the template's text around the content of a turn, which is not a part of the content."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.render.read.lexer import Lexed, has_tag, headed, is_tag, loose, pieces, typed


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a template: literal texts such as gpt-oss' `<|channel|>final<|message|>`.

    A literal with a tag is removed from the content anywhere, and a word between two of its tags may vary. A literal
    without a tag (functionary's `all`) is removed only where a turn begins.
    """

    literals: tuple[str, ...] = ()
    lead: str = ""
    """The beginning of a turn's first frame that the prompt already holds."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        return tuple(literal for literal in self.literals if has_tag(literal))

    def pattern(self) -> re.Pattern[str] | None:
        """A pattern for the literals with a tag, which are frames anywhere in a turn. None without such a literal."""
        patterns = dict.fromkeys(form for literal in self.markers for form in (_any_word(literal), headed(literal)))
        return re.compile("|".join(sorted(patterns, key=len, reverse=True))) if patterns else None

    def first(self) -> re.Pattern[str] | None:
        """A pattern for the literals without a tag, at the start of a turn. If such a literal begins with `lead`, the
        pattern matches anywhere. None without such a literal."""
        plain = [literal for literal in self.literals if not has_tag(literal)]
        led = [literal for literal in plain if self.lead and literal.startswith(self.lead)]
        patterns = [loose(literal) + r"\s*" for literal in sorted(plain, key=len, reverse=True)]
        if not patterns:
            return None
        return re.compile("|".join(patterns if led else [rf"\A(?:{form})" for form in patterns]))


def spans(pattern: re.Pattern[str] | None, lexed: Lexed, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of a pattern's matches in `syntax`."""
    if pattern is not None:
        yield from (match.span() for match in pattern.finditer(lexed.syntax, start, stop))


def without(text: str, start: int, stop: int, cuts: Sequence[tuple[int, int]]) -> list[str]:
    """The parts of `text[start:stop]` outside the cuts."""
    parts, offset = list[str](), start
    for begin, end in cuts:
        if begin >= offset and end <= stop:
            parts.append(text[offset:begin])
            offset = end
    return [*parts, text[offset:stop]]


def _any_word(literal: str) -> str:
    """A regular expression for the literal that allows any word between two of its tags.

    A type may also precede the last of these tags.
    """
    parts = [piece for piece in pieces(literal) if not piece.isspace()]
    forms, tags = list[str](), [re.escape(piece) for piece in parts if is_tag(piece)]
    for i, piece in enumerate(parts):
        between = 0 < i < len(parts) - 1 and is_tag(parts[i - 1]) and is_tag(parts[i + 1])
        named = between and piece.isalnum()
        forms.append((r"\w+" + typed(tags) * (i == len(parts) - 2)) if named else loose(piece))
    return r"\s*".join(forms)
