"""The messages of the code, to compare with those that a page quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_GAP = re.compile(r"\.\.\.|\bN\b")
"""What a page writes in place of a text or a figure."""


@cache
def strings(folder: Path) -> tuple[str, ...]:
    """All strings of the code in a folder. `...` stands for each value that an f-string fills in."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.py"))]
    return tuple(text for tree in trees for node in ast.walk(tree) if (text := text_of(node)))


def text_of(node: ast.AST | None) -> str:
    """The text of a string on one line; empty for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return _on_one_line("".join(_constant(part) or "..." for part in node.values))
    return _on_one_line(_constant(node))


def _constant(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def is_in(quote: str, messages: Iterable[str]) -> bool:
    """Whether a message has the quoted words, with up to 40 characters in place of `N` and of `...`."""
    pieces = _GAP.split(quote)
    words, longest = re.compile(".{0,40}?".join(map(re.escape, pieces))), max(pieces, key=len)
    return any(longest in message and words.search(message) for message in messages)
