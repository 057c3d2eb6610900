"""Bash text cut into words and commands, quotes and substitutions left as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError

_REDIRECT = re.compile(r"\d*(?:&>>?|>>|>&|>\||<<<|<&|<>|>|<)[ \t]*")
_HEREDOC = re.compile(r"\d*<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_CLOSING = {"$((": "))", "$(": ")", "${": "}"}


@dataclass(frozen=True, slots=True)
class Array:
    """`NAME=( ... )`, or `NAME+=( ... )`."""

    name: str
    append: bool
    words: tuple[str, ...]


@dataclass(slots=True)
class Command:
    """The words of one simple command, unexpanded, and the line it begins on."""

    line: int
    conditional: bool = False
    """It follows && or ||."""
    words: list[str | Array] = field(default_factory=list)


class Scanner:
    def __init__(self, text: str, name: str) -> None:
        self._text, self._name, self._at = text, name, 0
        self._ends: list[str] = []
        """Delimiters of the here-documents that begin on this line."""

    def commands(self) -> Iterator[Command]:
        """Raises ConfigError where a quote or a bracket is never closed."""
        command = Command(1)
        while self._at < len(self._text):
            if self._blank() or self._redirect():
                continue
            if self._text[self._at] in "\n;&|()":
                conditional = self._separator()
                if command.words:
                    yield command
                command = Command(self._line(), conditional or (command.conditional and not command.words))
                continue
            if not command.words:
                command.line = self._line()
            command.words.append(self._array() or self._word())
        if command.words:
            yield command

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _blank(self) -> bool:
        """Skip white space, a continued line or a comment."""
        rest = self._text[self._at : self._at + 2]
        if rest[0] in " \t\r":
            self._at += 1
        elif rest == "\\\n":
            self._at += 2
        elif rest[0] == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
        else:
            return False
        return True

    def _redirect(self) -> bool:
        if heredoc := _HEREDOC.match(self._text, self._at):
            self._ends.append(heredoc[2])
            self._at = heredoc.end()
            return True
        if not (redirect := _REDIRECT.match(self._text, self._at)):
            return False
        self._at = redirect.end()
        self._word()
        return True

    def _separator(self) -> bool:
        """Go behind what ends a command; whether the next one runs only on a condition."""
        if self._text.startswith(("&&", "||"), self._at):
            self._at += 2
            return True
        newline = self._text[self._at] == "\n"
        self._at += 1
        while newline and self._ends:
            delimiter = self._ends.pop(0)
            if end := re.compile(rf"^\t*{delimiter}$\n?", re.MULTILINE).search(self._text, self._at):
                self._at = end.end()
        return False

    def _array(self) -> Array | None:
        if not (found := _ARRAY.match(self._text, self._at)):
            return None
        start, self._at = self._line(), found.end()
        words: list[str] = []
        while self._at < len(self._text):
            if self._text[self._at] == ")":
                self._at += 1
                return Array(found[1], bool(found[2]), tuple(words))
            if self._text[self._at] == "\n":
                self._at += 1
            elif not self._blank():
                words.append(self._word() or self._odd())
        raise ConfigError(f"{self._name}:{start}: the array {found[1]}=( is never closed; add a )")

    def _odd(self) -> str:
        """A character that can begin no word, taken as one."""
        self._at += 1
        return self._text[self._at - 1]

    def _word(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|()<>":
            self._at = self._past(self._at)
        return self._text[start : self._at]

    def _past(self, at: int) -> int:
        """The place behind the character, quote or substitution at `at`."""
        end = end_of(self._text, at)
        if end is None:
            line = self._text.count("\n", 0, at) + 1
            raise ConfigError(f"{self._name}:{line}: {self._text[at : at + 20]!r} is never closed; close the quote")
        return end


def end_of(text: str, at: int) -> int | None:
    """Behind the quote, substitution, escape or single character at `at`; None where it is never closed."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] == "'":
        return (text.find("'", at + 1) + 1) or None
    for opening, closing in _CLOSING.items():
        if text.startswith(opening, at):
            return _closed(text, at + len(opening), closing)
    if text[at] in '"`':
        return _closed(text, at + 1, text[at])
    return at + 1


def _closed(text: str, at: int, closing: str) -> int | None:
    depth = 0
    while at < len(text):
        if depth == 0 and text.startswith(closing, at):
            return at + len(closing)
        if closing == '"' and text[at] == "'":
            at += 1  # an apostrophe is no quote within double quotes
            continue
        if closing in (")", "))"):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
        end = end_of(text, at)
        if end is None:
            return None
        at = end
    return None


def read_text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise ConfigError(f"{file}: no such file; give a launch script, a file of flags, or -- and the flags") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file}: not a readable text file: {exc}") from exc
    if "\0" in text:
        raise ConfigError(f"{file}: not a text file; give a launch script, or a file of flags")
    return text
