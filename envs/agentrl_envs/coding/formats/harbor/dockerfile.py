"""Parse a Dockerfile: its instructions with flags, arguments and here-documents, and its variables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl import ConfigError

_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)\s*$", re.IGNORECASE)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s+")
_HEREDOC = re.compile(r"<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    """The number of the instruction's first line, from 1."""
    end: int
    """The number of the line after the instruction, from 1."""
    name: str
    """The instruction's name in capitals: RUN, COPY, ..."""
    value: str
    """The text after the flags."""
    flags: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    """Name of a here-document -> its text."""

    def listed(self) -> list[str] | None:
        """The arguments if they are a JSON list of texts: a program without a shell."""
        if not self.value.startswith("["):
            return None
        try:
            arguments = json.loads(self.value)
        except ValueError:
            return None
        return (
            arguments
            if isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)
            else None
        )


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile. Raises ConfigError for a here-document without an end."""
    lines = text.splitlines()
    escape = next((match[1] for line in lines[:3] if (match := _ESCAPE.match(line))), "\\")
    instructions = []
    rest = _Lines(lines)
    for line in rest:
        if line.strip() and not line.lstrip().startswith("#"):
            begin = rest.read
            instructions.append(_instruction(begin, _joined(line, rest, escape), rest))
    return instructions


class _Lines:
    """Iterates over the lines of a file, and counts the lines that were read."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines, self.read = lines, 0

    def __iter__(self) -> Iterator[str]:
        while self.read < len(self._lines):
            self.read += 1
            yield self._lines[self.read - 1]


def _joined(line: str, rest: _Lines, escape: str) -> str:
    """A line, joined with its continuation lines, without comments and empty lines."""
    whole = line.strip()
    while whole.endswith(escape):
        whole = whole[:-1]
        for following in rest:
            if following.strip() and not following.lstrip().startswith("#"):
                whole += following.rstrip()
                break
        else:
            break
    return whole


def _instruction(line: int, text: str, rest: _Lines) -> Instruction:
    name, _, value = text.partition(" ")
    if not value:
        name, _, value = text.partition("\t")
    value, flags = value.strip(), {}
    while match := _FLAG.match(value):
        flags[match[1]] = match[2] or ""
        value = value[match.end() :]
    name = name.upper()
    documents = {}
    if name in ("RUN", "COPY", "ADD"):
        for match in _HEREDOC.finditer(value):
            documents[match[3]] = _document(line, match[3], bool(match[1]), rest)
    return Instruction(line, rest.read + 1, name, value, flags, documents)


def _document(line: int, end: str, tabs: bool, rest: _Lines) -> str:
    lines: list[str] = []
    for text in rest:
        text = text.lstrip("\t") if tabs else text
        if text == end:
            return "".join(content + "\n" for content in lines)
        lines.append(text)
    raise ConfigError(f"Dockerfile line {line}: the here-document {end} does not end")


def assignments(instruction: Instruction) -> dict[str, str]:
    """The variables of an ENV or ARG, not yet filled in. A bare ARG sets no variable."""
    first = instruction.value.split(None, 1)
    if instruction.name == "ENV" and first and "=" not in first[0]:  # the old form: ENV NAME the rest
        return {first[0]: first[1] if len(first) > 1 else ""}
    try:
        words = shlex.split(instruction.value)
    except ValueError as exc:
        raise ConfigError(f"Dockerfile line {instruction.line}: {exc}") from exc
    return dict(word.split("=", 1) for word in words if "=" in word)


def filled(text: str, variables: Mapping[str, str]) -> str:
    """`text` with `$NAME`, `${NAME}`, `${NAME:-else}` and `${NAME:+then}` filled in; unknown variables are empty."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1]
        variable, operator = variables.get(match[2] or match[3]), match[4] or ""
        is_set = variable if operator.startswith(":") else variable is not None
        if operator.endswith("+"):
            return match[5] if is_set else ""
        return variable if variable is not None and (is_set or not operator) else (match[5] or "")

    return _VARIABLE.sub(value, text)
