"""The tools of a coding agent in a sandbox. The model reads the results, and the messages of ToolErrors."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote

from agentrl import ToolError
from agentrl.sandbox import Sandbox
from agentrl_sandbox.shell import Shell

_LARGEST_FILE = 4 << 20
"""`read` and `edit` refuse files with more bytes."""

_LONGEST_LINE = 500
"""The most characters of a line in a result."""

_MATCHES = 100
"""The most lines that a search returns."""

_MOST_COMPARED = 20_000
"""The most pairs of lines that are compared to find similar lines. So many take a fraction of a second."""

_MODELS_OWN = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}
_MODELS_OWN |= {errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS, errno.EINVAL}
"""Error numbers of an OSError that the model caused, by a wrong path or a full disk. Any other OSError is a failure of
the sandbox."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a model in a sandbox. Relative paths start in the present folder of `shell`."""

    box: Sandbox
    shell: Shell
    command_s: float
    """The time limit of a command, in seconds."""
    output: int
    """The most characters of a result."""

    async def bash(self, command: str) -> str:
        """Run a command. Returns the output, shortened in the middle, and how the command failed, if it failed."""
        result = await self.shell.run(command, timeout=self.command_s, max_output=4 * self.output)
        output = cut(result.stdout, self.output).rstrip("\n")
        if result.timed_out:
            how = f"killed after {self.command_s:g} s, with all it started; a command may take no longer"
            return f"{output}\n[{how}]".lstrip("\n")
        if result.exit_code:
            return f"{output}\n[exit code {result.exit_code}]".lstrip("\n")
        return output or "[no output]"

    async def read(self, path: str, first: int, last: int | None) -> str:
        """Lines of a file with their numbers, as many as fit."""
        text = await self._text(path)
        if not text:
            return f"[{path} is empty]"
        lines = _lines(text)
        if not 1 <= first <= len(lines) or (last is not None and last < first):
            raise ToolError(f"{path} has lines 1 to {len(lines)}, and you asked for {first} to {last or 'the end'}")
        parts, room = list[str](), self.output
        for number, line in enumerate(lines[first - 1 : last], first):
            text = _numbered(number, line)
            if (room := room - len(text) - 1) < 0 and parts:
                return "\n".join([*parts, f"[{path} has {len(lines)} lines; read on with first={number}]"])
            parts.append(text)
        return "\n".join(parts)

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace text that occurs exactly once, or make a file if `old` is empty. Returns the changed lines."""
        if not old:
            return await self._create(path, new)
        if old == new:
            raise ToolError("old and new are equal: nothing would change")
        text = await self._text(path)
        if (places := text.count(old)) != 1:
            raise ToolError(_not_unique(path, text, old) if places else _not_found(path, text, old))
        position = text.index(old)
        changed = text[:position] + new + text[position + len(old) :]
        with _for_the_model(path):
            await self.box.write_file(self.shell.path(path), changed)
        first = text.count("\n", 0, position) + 1
        last = first + new.removesuffix("\n").count("\n")
        lines = _lines(changed)
        around = range(max(first - 2, 1), min(last + 2, len(lines)) + 1)
        return cut("\n".join(_numbered(number, lines[number - 1]) for number in around), self.output)

    async def search(self, pattern: str, path: str, files: str) -> str:
        """Lines that match a regular expression, as `file:line:text`."""
        where = self.shell.path(path) if path.startswith("~") else path
        command = (
            "grep -rnIE --exclude-dir=.git --color=never "
            f"--include={quote(files)} -e {quote(pattern)} -- {quote(where)} | head -n {_MATCHES + 1} | cut -c 1-2000"
        )
        with _for_the_model(self.shell.state.cwd):
            result = await self.box.exec(
                command, cwd=self.shell.path("."), timeout=self.command_s, max_output=1 << 20, env={"LC_ALL": "C.UTF-8"}
            )
        if result.timed_out:
            raise ToolError(f"no result within {self.command_s:g} s; search a smaller folder")
        lines = [_shortened(line) for line in result.stdout.splitlines()]
        if not lines:
            if result.stderr:
                raise ToolError(cut(result.stderr.strip(), 500))
            return f"[no line matches in {path}]"
        more = ["[there are more; narrow the pattern or the path]"] if len(lines) > _MATCHES else []
        return cut("\n".join(lines[:_MATCHES] + more), self.output)

    async def _text(self, path: str) -> str:
        with _for_the_model(path):
            content = await self.box.read_bytes(self.shell.path(path), max_bytes=_LARGEST_FILE)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise ToolError(f"{path} is no text in UTF-8 ({len(content):,} bytes); use bash")
        return text

    async def _create(self, path: str, text: str) -> str:
        try:
            with _for_the_model(path):
                content = await self.box.read_bytes(self.shell.path(path), max_bytes=_LARGEST_FILE)
        except ToolError as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                raise
            content = b""
        if content:
            raise ToolError(f"{path} exists and is not empty; give in `old` the text to replace, or remove it first")
        with _for_the_model(path):
            await self.box.write_file(self.shell.path(path), text)
        return f"[wrote {len(text):,} characters to {path}]"


def cut(text: str, limit: int) -> str:
    """The first and the last half of `limit` characters, with a mark in between that counts the missing characters."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[... {len(text) - len(head) - len(tail):,} characters cut here ...]\n{tail}"


@contextmanager
def _for_the_model(path: str) -> Iterator[None]:
    """Turn the error of a wrong path or a full disk into a ToolError."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _MODELS_OWN:
            raise
        reason = "the file is too large; use bash" if exc.errno == errno.EFBIG else (exc.strerror or str(exc))
        raise ToolError(f"{path}: {reason}") from exc


def _lines(text: str) -> list[str]:
    """The lines of a text. Only line feeds end a line, as for other programs."""
    return text.removesuffix("\n").split("\n")


def _numbered(number: int, line: str) -> str:
    return f"{number:>6}\t{_shortened(line)}"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} [{len(line):,} characters]"


def _not_unique(path: str, text: str, old: str) -> str:
    numbers, position = [], text.find(old)
    while position >= 0:
        numbers.append(text.count("\n", 0, position) + 1)
        position = text.find(old, position + 1)
    places = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"old occurs {len(numbers)} times in {path}, at lines {places}; add lines around it until it is unique"


def _not_found(path: str, text: str, old: str) -> str:
    """The error for text that does not occur, with the closest lines."""
    if "\r\n" in text and old in text.replace("\r\n", "\n"):
        return f"{path} ends its lines with \\r\\n; change it by bash, or convert it first"
    block, lines = old.strip("\n").split("\n"), _lines(text)
    starts = range(max(len(lines) - len(block) + 1, 1))
    if len(starts) * len(block) > _MOST_COMPARED:
        return f"old does not occur in {path}; read the part that you want to change first"
    ratios = ((_likeness(lines[start : start + len(block)], block), start) for start in starts)
    best, start = max(ratios, key=lambda candidate: (candidate[0], -candidate[1]))
    if best < 0.5:
        return f"old does not occur in {path}, and nothing like it; read the file first"
    closest = [
        _numbered(number, lines[number - 1]) for number in range(start + 1, min(start + len(block), len(lines)) + 1)
    ]
    return f"old does not occur in {path}. The closest lines, which differ from it:\n" + cut("\n".join(closest), 2000)


def _likeness(lines: list[str], block: list[str]) -> float:
    """How alike two equally long blocks are, from 0 to 1. Spaces at the ends of lines count little."""
    pairs = list(zip(lines, block, strict=False))
    return sum(difflib.SequenceMatcher(None, a.strip(), b.strip()).quick_ratio() for a, b in pairs) / len(block)
