"""The parts of an answer: a tree of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


class UnreadableError(Exception):
    """A text cannot be read as a whole, or has no value. Such texts are only compared character by character."""


@dataclass(frozen=True)
class MathNode:
    """A part of an answer.

    `kind` is one of:
        number (text: digits), name (text), words (text), inf
        + * / ^ neg ± ∓ and the functions of `values.py`
        percent, degree, currency (text): a part with a unit, until `reading.py` makes a quantity of the node
        quantity: values, and in `text` the unit of each value, one a line
        list (text: brackets, or the word between the parts), relation (text: signs, separated by spaces)
        sum, prod: start, end and term (text: the index)
        matrix of row, union, minus, ratio, based (text: digits_base), call (text: the function's name)
    """

    kind: str
    parts: tuple[MathNode, ...] = ()
    text: str = ""

    def walk(self) -> Iterator[MathNode]:
        """This node and all nodes below."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def map(self, change: Callable[[MathNode], MathNode]) -> MathNode:
        """The tree after `change` of each node, from the leaves up."""
        return change(replace(self, parts=tuple(part.map(change) for part in self.parts)))

    def has(self, *kinds: str) -> bool:
        return any(node.kind in kinds for node in self.walk())


CONSTANTS = {"pi", "e", "i"}


def number(text: str) -> MathNode:
    return MathNode("number", text=text)


def name(text: str) -> MathNode:
    return MathNode("name", text=text)


def free_names(*nodes: MathNode) -> set[str]:
    """The names of variables and of unknown functions in these nodes."""
    names: set[str] = set()
    for node in nodes:
        below = free_names(*node.parts)
        names |= below - {node.text} if node.kind in ("sum", "prod") else below
        names |= {node.text} if node.kind in ("name", "call") else set()
    return names - CONSTANTS


def branches(node: MathNode) -> list[MathNode]:
    """The value of a node, or both values of a node with a plus-minus sign."""
    if not node.has("±", "∓"):
        return [node]

    def plus(part: MathNode) -> MathNode:
        return {"±": part.parts[0], "∓": MathNode("neg", part.parts)}.get(part.kind, part) if part.parts else part

    def minus(part: MathNode) -> MathNode:
        return {"∓": part.parts[0], "±": MathNode("neg", part.parts)}.get(part.kind, part) if part.parts else part

    return [node.map(plus), node.map(minus)]
