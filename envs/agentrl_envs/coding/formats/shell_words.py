"""Find the commands of a shell script that install packages, and the commands that use a network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

_INSTALLERS = {
    "apt-get": {"update", "install", "upgrade", "dist-upgrade", "clean", "autoremove", "autoclean"},
    "apt": {"update", "install", "upgrade", "clean", "autoremove"},
    "apk": {"add", "update", "upgrade"},
    "dnf": {"install", "update", "clean"},
    "yum": {"install", "update", "clean"},
    "pip": {"install"},
    "pip3": {"install"},
    "uv": {"pip", "sync", "tool", "python", "add"},
    "npm": {"install", "ci", "i"},
    "yarn": {"install", "add"},
    "gem": {"install"},
    "cargo": {"install", "fetch"},
    "go": {"install", "get", "mod"},
    "conda": {"install"},
}
_FETCHERS = ("curl", "wget", "uvx", "npx", "rsync", "scp")
_ASSIGNMENT = re.compile(r"\w+=\S*$")


def commands(script: str) -> Iterator[tuple[str, str]]:
    """(operator before the command, command) for each command of a script outside of quotes and brackets."""
    operator, begin, depth, quote, position = "", 0, 0, "", 0
    while position < len(script):
        char = script[position]
        if char == "\\":
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char in "({":
            depth += 1
        elif char in ")}":
            depth -= 1
        elif depth == 0 and (end := _operator(script, position)):
            yield operator, script[begin:position].strip()
            operator, begin = end, position + len(end)
            position = begin
            continue
        position += 1
    yield operator, script[begin:].strip()


def _operator(script: str, position: int) -> str:
    if script.startswith(("&&", "||"), position):
        return script[position : position + 2]
    return script[position] if script[position] in ";\n" else ""


def installs(command: str) -> bool:
    """Whether a simple command only installs packages, or cleans up after an installation."""
    words = _words(command)
    if not words or "|" in words:
        return False
    if words[0] == "rm":
        return all(
            argument.startswith(("-", "/var/lib/apt/", "/var/cache/apt", "/root/.cache")) for argument in words[1:]
        )
    if words[:1] and words[0].startswith("python") and words[1:3] == ["-m", "pip"]:
        words = words[2:]
    return any(word in _INSTALLERS.get(words[0], ()) for word in words[1:])


def fetches(script: str) -> list[str]:
    """The programs in a script that need a network, without repeats: apt-get, pip, curl, `git clone`, ..."""
    programs = []
    for line in re.split(r"[\n;|&(){}]+", script.replace("\\\n", " ")):
        words = _words(line)
        if words and (words[0] in _FETCHERS or (installs(line) and words[0] != "rm")):
            programs.append("pip" if words[1:3] == ["-m", "pip"] else words[0])
        elif words[:2] == ["git", "clone"]:
            programs.append("git clone")
    return list(dict.fromkeys(programs))


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    while words and (words[0] in ("sudo", "env", "then", "do", "else", "if", "!") or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    return words
