"""What a bash script gives to train.py, read without running it.

Assignments, arrays, `source`d files and the substitutions that launch scripts use (`${NAME:-default}`, arithmetic,
`$(dirname ...)`, `$(cd ... && pwd)`, `$(seq ...)`) are worked out; nothing is executed. What would need that is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.slime.check.scanner import Array, Scanner, end_of, read_text
from agentrl.slime.check.words import Word, calculated, is_array, numbers, split, together, unescaped, unknown

TRAIN_PROGRAMS = ("train.py", "train_async.py")
_MAX_DEPTH = 8
_MOST_NUMBERS = 10_000
"""No flag takes more; `seq` counts as far as it is asked to."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+)(\[[@*0]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)
_ARITHMETIC = re.compile(r"[\d\s()+*/%-]+")
_OPENS, _CLOSES = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
_PREFIXES = frozenset(
    {*_OPENS, *_CLOSES, "then", "else", "elif", "do", "{", "}", "!", "time", "exec", "nohup", "set", "in"}
)
_DECLARES = frozenset({"export", "declare", "readonly", "local", "typeset"})


@dataclass(frozen=True, slots=True)
class TrainCommand:
    place: str
    """file:line"""
    program: str
    words: tuple[Word, ...]
    """What stands behind train.py."""


class Shell:
    """The variables of a script as far as they can be known. Relative paths are taken from the current folder."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._variables = {name: [Word(value)] for name, value in environment.items()}
        self._script = Path("script")
        self.commands: list[TrainCommand] = []
        self.unread: dict[str, str] = {}
        """Files that `source` names and that are not there, and the place of it."""
        self.missing: set[str] = set()
        """Arrays that are not set."""
        self.lost: list[str] = []
        """Places where flags stand as a command: the line before lacks its backslash."""

    def read(self, file: Path, depth: int = 0) -> None:
        """Read a script as bash would run it. Raises ConfigError."""
        outer, self._script = self._script, file
        conditions = 0
        for command in Scanner(read_text(file), str(file)).commands():
            words = command.words
            while words and isinstance(words[0], str) and words[0] in _PREFIXES:
                conditions += (words[0] in _OPENS) - (words[0] in _CLOSES)
                words = words[1:]
            words = self._assign(words, conditional=conditions > 0 or command.conditional)
            self._command(f"{file}:{command.line}", words, depth)
        self._script = outer

    def expand(self, words: Iterable[str]) -> list[Word]:
        return [word for raw in words for word in self._fields(raw)]

    def _assign(self, words: Sequence[str | Array], *, conditional: bool) -> list[str | Array]:
        """Take the assignments before a command, or behind `export`; the words that are left."""
        rest = list(words)
        while rest and (isinstance(rest[0], Array) or rest[0] in _DECLARES or _ASSIGNMENT.match(rest[0])):
            word = rest.pop(0)
            if isinstance(word, Array):
                self._set(word.name, self.expand(word.words), append=word.append, conditional=conditional)
            elif word in _DECLARES:
                while rest and isinstance(rest[0], str) and rest[0].startswith("-"):
                    rest.pop(0)
            elif found := _ASSIGNMENT.match(word):
                value = self._joined(word[found.end() :])
                if found[2] and (before := self._variables.get(found[1])):
                    value = together([before[0], value])
                self._set(found[1], [value], conditional=conditional)
        return rest

    def _set(self, name: str, values: list[Word], *, append: bool = False, conditional: bool) -> None:
        if conditional:
            values = [Word(v.text, v.unknown, v.doubtful | {name}) for v in values]
        self._variables[name] = [*self._variables.get(name, ()), *values] if append else values

    def _command(self, place: str, raw: Sequence[str | Array], depth: int) -> None:
        words = self.expand(word for word in raw if isinstance(word, str))
        if self.commands and words and words[0].text.startswith("--"):
            self.lost.append(place)
        if not words:
            return
        if words[0].text in ("source", ".") and len(words) > 1:
            file = Path(words[1].text)
            if words[1].unknown or not file.is_file() or depth == _MAX_DEPTH:
                self.unread[words[1].text] = place
            else:
                self.read(file, depth + 1)
            return
        for i, word in enumerate(words):
            before = (Path(w.text).name for w in words[:i])
            if Path(word.text).name in TRAIN_PROGRAMS and (i == 0 or any(n.startswith("python") for n in before)):
                self.commands.append(TrainCommand(place, Path(word.text).name, tuple(words[i + 1 :])))
                return

    def _fields(self, raw: str) -> list[Word]:
        """The words that one raw word becomes."""
        fields, parts, at = list[Word](), list[Word](), 0
        kept = False  # an empty quoted string is a word, a quoted array without members is none
        while at < len(raw):
            start, (pieces, at) = at, self._piece(raw, at)
            if raw[start] in "$`":
                parts = split(fields, parts, pieces[0])
                continue
            first, *others = pieces
            kept = kept or (raw[start] in "'\"" and (bool(first) or not is_array(raw[start + 1 : at - 1])))
            parts = [*parts, *first]
            for other in others:
                fields.append(together(parts))
                parts = other
        if kept or any(part.text for part in parts):
            fields.append(together(parts))
        return fields

    def _joined(self, raw: str) -> Word:
        """The right side of an assignment, or a default, which is not split."""
        parts, at = list[Word](), 0
        while at < len(raw):
            pieces, at = self._piece(raw, at)
            parts += [word for piece in pieces for word in piece]
        return together(parts)

    def _piece(self, raw: str, at: int) -> tuple[list[list[Word]], int]:
        """What stands at `at`, a quote, a substitution or a character, by the fields it makes; and where it ends."""
        end = end_of(raw, at) or len(raw)
        if raw[at] in "$`":
            values, end = self._substituted(raw, at)
            return [values], end
        if raw[at] == '"':
            return self._quoted(raw[at + 1 : end - 1]), end
        return [[Word(raw[at + 1 : end - 1] if raw[at] == "'" else unescaped(raw[at:end]))]], end

    def _quoted(self, text: str) -> list[list[Word]]:
        """What stands between double quotes: more than one field where an array is spread, none of it split."""
        fields, at = [list[Word]()], 0
        while at < len(text):
            if text[at] in "$`":
                values, at = self._substituted(text, at)
                fields[-1] += values[:1]
                fields += [[value] for value in values[1:]]
                continue
            end = end_of(text, at) if text[at] == "\\" else at + 1
            piece = text[at:end]
            fields[-1].append(Word(unescaped(piece) if piece[1:] in ('"', "\\", "$", "`", "\n") else piece))
            at = end or len(text)
        return fields

    def _substituted(self, text: str, at: int) -> tuple[list[Word], int]:
        """The values of the substitution at `at`, and where it ends."""
        end = end_of(text, at) or len(text)
        source = text[at:end]
        if source.startswith("$(("):
            return [self._arithmetic(source)], end
        if source.startswith(("$(", "`")):
            return self._command_output(source), end
        if source.startswith("${"):
            return self._parameter(source[2:-1], source), end
        if name := _NAME.match(text, at + 1):
            return self._parameter(name[0], f"${name[0]}"), name.end()
        if text[at + 1 : at + 2].isdigit() or text[at + 1 : at + 2] in tuple("@*#?$!"):
            source = text[at : at + 2]
            return self._parameter("0", source) if source == "$0" else [unknown(source)], at + 2
        return [Word("$")], at + 1

    def _parameter(self, inner: str, source: str) -> list[Word]:
        if not (found := _PARAMETER.fullmatch(inner)):
            return [unknown(source)]
        name, index, operator, word = found.groups()
        values = [Word(str(self._script))] if name in ("BASH_SOURCE", "0") else self._variables.get(name)
        empty = values is None or ((operator or "").startswith(":") and not any(v.text for v in values))
        if operator and operator[-1] in "-=" and empty:
            return [self._joined(word)]
        if operator and operator[-1] == "+":
            return [] if empty else [self._joined(word)]
        if values is None and index in ("[@]", "[*]"):
            self.missing.add(name)
            return []
        if values is None or (operator and empty):
            return [unknown(source, name)]
        return values if index in ("[@]", "[*]") else values[:1]

    def _arithmetic(self, source: str) -> Word:
        inner = source[3:-2]
        names = _NAME.sub(lambda m: f"${m[0]}", re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", inner))
        value = together(self._quoted(names)[0])
        if value.unknown or not _ARITHMETIC.fullmatch(value.text):
            return unknown(source, *value.unknown)
        try:
            return Word(str(calculated(value.text)), doubtful=value.doubtful)
        except (ArithmeticError, SyntaxError, ValueError):
            return unknown(source)

    def _command_output(self, source: str) -> list[Word]:
        inner = source[2:-1] if source.startswith("$(") else source[1:-1]
        commands = [c.words for c in Scanner(inner, str(self._script)).commands()]
        said = [self.expand(w for w in words if isinstance(w, str)) for words in commands]
        if any(word.unknown for words in said for word in words):
            return [unknown(source, *(name for words in said for word in words for name in word.unknown))]
        names = [[word.text for word in words if word.text != "--"] for words in said]
        match names:
            case [["dirname", path]]:
                return [Word(os.path.dirname(path) or ".")]
            case [["realpath" | "readlink", *_, path]]:
                return [Word(os.path.realpath(path))]
            case [["cd", path], ["pwd", *_]]:
                return [Word(os.path.abspath(path))]
            case [["pwd"]]:
                return [Word(os.getcwd())]
            case [["seq", *ends]] if 1 <= len(ends) <= 3 and all(end.isdigit() for end in ends):
                return [Word(str(number)) for number in numbers([int(end) for end in ends])[:_MOST_NUMBERS]]
        return [unknown(source)]
