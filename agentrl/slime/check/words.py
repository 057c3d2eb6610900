"""Words of a bash command line, and what they are made of."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    unknown: frozenset[str] = frozenset()
    """What it depends on that only a run of the script could tell; `text` then shows the source."""
    doubtful: frozenset[str] = frozenset()
    """Variables in it that the script sets under a condition."""


def unknown(source: str, *names: str) -> Word:
    short = source if len(source) < 40 else f"{source[:36]}...)"
    return Word(source, frozenset(names or (short,)))


def together(parts: Sequence[Word]) -> Word:
    return Word(
        "".join(part.text for part in parts),
        frozenset().union(*(part.unknown for part in parts)),
        frozenset().union(*(part.doubtful for part in parts)),
    )


def split(fields: list[Word], parts: list[Word], values: Sequence[Word]) -> list[Word]:
    """Join unquoted values to the field under way as bash splits them: complete fields go into `fields`."""
    for i, value in enumerate(values):
        pieces = [value.text] if value.unknown else value.text.split()
        for j, piece in enumerate(pieces):
            if (i or j) and parts:
                fields.append(together(parts))
                parts = []
            parts = [*parts, Word(piece, value.unknown, value.doubtful)]
    return parts


def is_array(text: str) -> bool:
    return text.startswith("${") and text.endswith(("[@]}", "[*]}"))


def unescaped(piece: str) -> str:
    if piece == "\\\n":
        return ""
    return piece[1:] if piece.startswith("\\") and len(piece) > 1 else piece


def numbers(ends: Sequence[int]) -> range:
    """What `seq [FIRST [STEP]] LAST` counts."""
    first = ends[0] if len(ends) > 1 else 1
    step = ends[1] if len(ends) > 2 else 1
    return range(first, ends[-1] + 1, max(step, 1))


def calculated(text: str) -> int:
    """Whole-number arithmetic of digits, brackets and + - * / %, which is all that `text` may hold."""
    operators: dict[type[ast.AST], Callable[[int, int], int]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.floordiv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }

    def value(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
                return operators[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
        raise ValueError(text)

    return value(ast.parse(text.strip(), mode="eval").body)
