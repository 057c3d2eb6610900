"""The values of a docker-compose.yaml: variables filled in, and words, sizes and times read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentrl import ConfigError

_MOST = 50_000
"""The most values of a file. `docker compose` reads this number in a moment."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-+?]")
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_MEGABYTES = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1.0, "g": 1024.0}


class Variables:
    """The variables of `${NAME}` in a compose file. This process's environment is left out."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self._remaining = _MOST

    def fill(self, value: Any) -> Any:
        """A value in which the variables of all texts are filled in. Unknown variables are empty, as in compose.

        Raises ConfigError for a form that compose does not have, with the text of `${NAME:?text}`, and for a file whose
        aliases (*name) repeat without end.
        """
        self._remaining -= 1
        if self._remaining < 0:
            raise ConfigError(f"it has more than {_MOST} values, with its aliases (*name) written out; use fewer")
        if isinstance(value, str):
            return self._filled(value)
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return value

    def _filled(self, text: str) -> str:
        pieces, position = [], 0
        while (begin := text.find("$", position)) >= 0:
            pieces.append(text[position:begin])
            value, position = self._at(text, begin)
            pieces.append(value)
        return "".join([*pieces, text[position:]])

    def _at(self, text: str, begin: int) -> tuple[str, int]:
        """The value of the variable reference at the dollar sign `begin`, and the index after the reference."""
        if text.startswith("$$", begin):
            return "$", begin + 2
        braced = text.startswith("${", begin)
        name = _NAME.match(text, begin + 1 + braced)
        if name is None:
            raise ConfigError(f"{text!r} has a $ without a name; write $$ for the character itself")
        if not braced:
            return self.values.get(name[0], ""), name.end()
        end = _closing(text, begin + 1)
        operator = _OPERATOR.match(text, name.end(), end)
        if operator is None and name.end() != end:
            raise ConfigError(f"{text[begin : end + 1]} is not a variable in a form of compose")
        rest = text[operator.end() : end] if operator is not None else ""
        return self._chosen(name[0], operator[0] if operator is not None else "", rest), end + 1

    def _chosen(self, name: str, operator: str, rest: str) -> str:
        value = self.values.get(name)
        if value is not None and (value or not operator.startswith(":")):
            return self._filled(rest) if operator.endswith("+") else value
        if operator.endswith("?"):
            raise ConfigError(f"the variable {name} is needed: {self._filled(rest) or 'it is not set'}")
        return self._filled(rest) if operator.endswith("-") else ""


def _closing(text: str, begin: int) -> int:
    depth = 0
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ConfigError(f"{text!r} has a ${{ that does not end")


def env_file(file: Path) -> dict[str, str]:
    """The variables of a file with lines NAME=value. Raises ConfigError for an unreadable file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file.name} cannot be read: {exc}") from exc
    variables = {}
    for line in map(str.strip, lines):
        name, equals, value = line.removeprefix("export ").partition("=")
        if equals and not line.startswith("#"):
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            variables[name.strip()] = value[1:-1] if quoted else value.partition(" #")[0].rstrip()
    return variables


def mapping(value: Any, variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables from a mapping or a list of NAME=value. A NAME alone gets the value of this name in
    `variables`, if any."""
    if isinstance(value, dict):
        pairs = [(str(name), None if setting is None else text(setting)) for name, setting in value.items()]
    else:
        split = [text(setting).partition("=") for setting in items(value)]
        pairs = [(name, setting if equals else None) for name, equals, setting in split]
    resolved = [(name, variables.get(name) if setting is None else setting) for name, setting in pairs]
    return {name: setting for name, setting in resolved if setting is not None}


def text(value: Any) -> str:
    """A text, number or boolean as text, in the form of compose. Raises ConfigError for a list or a mapping."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{value!r:.80} must be a text or a number")


def word(settings: Mapping[str, Any], key: str) -> str:
    """The text of a setting; empty if the setting is missing. Raises ConfigError as `text` does."""
    return text(settings.get(key) or "")


def items(value: Any) -> list[Any]:
    """The items of a list. A single value becomes a list, None an empty list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def words(value: Any) -> tuple[str, ...] | None:
    """The words of a command: a list, or a line that is split as in a shell. None if the command is not set."""
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(map(text, value))
    try:
        return tuple(shlex.split(text(value)))
    except ValueError as exc:
        raise ConfigError(f"the command {value!r:.80}: {exc}") from exc


def seconds(value: Any) -> float:
    """A duration such as 1m30s or 500ms in seconds. Raises ConfigError for other values."""
    time = text(value).strip()
    if not time or "".join(part[0] for part in _PART.finditer(time)) != time:
        raise ConfigError(f"{time!r} is not a time; write 10s, 1m30s or 500ms")
    return sum(float(part[1]) * _SECONDS[part[2]] for part in _PART.finditer(time))


def megabytes(value: Any) -> int:
    """A size such as 512m, 2g or a number of bytes in MiB, at least 1. Raises ConfigError for other values."""
    match = _SIZE.fullmatch(text(value).strip())
    if match is None:
        raise ConfigError(f"{value!r} is not a size; write 512m or 2g")
    return max(1, int(float(match[1]) * _MEGABYTES[match[2].lower()]))


def number(value: Any) -> float:
    """A positive number. Raises ConfigError for other values."""
    try:
        parsed = float(text(value))
    except ValueError:
        parsed = 0.0
    if not 0 < parsed < float("inf"):
        raise ConfigError(f"{value!r} is not a positive number")
    return parsed


class Volume(NamedTuple):
    """An entry of `volumes` in a compose file."""

    kind: str
    """The kind of mount: volume, bind or tmpfs."""
    source: str
    target: str
    read_only: bool
    size_mb: int = 0
    """The size of a tmpfs in MiB; 0: not set."""


def in_memory(value: Any) -> dict[str, Any]:
    """The fields of a Mount from an entry of `tmpfs`, such as /path or /path:size=64m,uid=999,gid=999,mode=700.

    Other options are ignored. Raises ConfigError for a wrong value.
    """
    path, _, settings = text(value).partition(":")
    options = dict(setting.partition("=")[::2] for setting in settings.split(",") if setting)
    fields: dict[str, Any] = {"path": path, "owner": f"{options.get('uid', '0')}:{options.get('gid', '0')}"}
    if "mode" in options:
        fields["mode"] = options["mode"].removeprefix("0o")
    if "size" in options:
        fields["size_mb"] = megabytes(options["size"])
    return fields


def volume(value: Any) -> Volume:
    """The Volume from an entry in compose's short or long form. Raises ConfigError for a wrong value."""
    if isinstance(value, dict):
        memory = value.get("tmpfs")
        size = memory.get("size") if isinstance(memory, dict) else None
        mount = Volume(
            text(value.get("type", "volume")),
            text(value.get("source", "")),
            text(value.get("target", "")),
            bool(value.get("read_only", False)),
            megabytes(size) if size else 0,
        )
    else:
        source, colon, rest = text(value).partition(":")
        target, _, options = rest.partition(":") if colon else (source, "", "")
        source = source if colon else ""
        kind = "bind" if source.startswith((".", "/", "~")) else "volume"
        mount = Volume(kind, source, target, "ro" in options.split(","))
    if not mount.target.startswith("/"):
        raise ConfigError(f"the mount {value!r:.120} has no absolute path in the container")
    return mount
