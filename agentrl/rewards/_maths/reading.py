"""Reads a mathematical text as a tree. The text is read as a whole, to its last character, or not at all."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .expressions import ExpressionReader
from .nodes import MathNode, UnreadableError, number
from .tokens import Token, clean, tokens
from .units import SCALES, SPEEDS, unit

_RELATIONS = {"=", "<", ">", "<=", ">=", "!=", "in", "approx"}
_JOINTS = {"and", "or"}
_DEGREES = {"c": "celsius", "f": "fahrenheit", "celsius": "celsius", "fahrenheit": "fahrenheit"}
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_DEEPEST, _MOST_TOKENS = 60, 1000


@lru_cache(4096)
def spelling(text: str) -> tuple[str, ...]:
    """The tokens of a text, for a comparison of spellings. Empty if a character is unknown."""
    try:
        read = tokens(clean(text))
    except UnreadableError:
        return ()
    signs: list[str] = []
    letters = False
    for token in _without_needless_braces(read):
        text = token.text.lower() if token.kind == "word" and len(token.text) > 2 else token.text
        if letters and token.kind in ("name", "word"):
            signs[-1] += text
        else:
            signs.append(text)
        letters = token.kind in ("name", "word")
    return tuple(signs)


def _without_needless_braces(tokens: list[Token]) -> list[Token]:
    """The tokens without braces around a single token."""
    bare: list[Token] = []
    for token in tokens:
        bare.append(token)
        if [token.sign for token in bare[-3::2]] == ["{", "}"] and bare[-2].sign not in ("{", "}"):
            bare[-3:] = [bare[-2]]
    return bare


@lru_cache(4096)
def read(text: str) -> MathNode:
    """The tree of a text. Raises UnreadableError."""
    reader = _AnswerReader(tokens(clean(text)))
    if len(reader.tokens) > _MOST_TOKENS:
        raise UnreadableError("too long")
    node = reader.items("")
    reader.expect("")
    return node


class _AnswerReader(ExpressionReader):
    """Reads lists, relations, values with units, and words."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.depth = 0

    def items(self, closing: str) -> MathNode:
        """Read the items before the closing bracket, which is not taken. A single item is not a list, except in a
        set."""
        rows, joints = [[self.relation()]], []
        while self.next.word in _JOINTS or self.next.sign in (",", ";"):
            joint = self.take().text.lower()
            if joint in ",;" and self.next.word in _JOINTS:
                joint = self.take().word
            joints.append(joint)
            if joint == ";":
                rows.append([])
            rows[-1].append(self.relation())
        joint = next((word for word in ("or", "and") if word in joints), ",")
        if max(map(len, rows)) == 1:
            rows = [[row[0] for row in rows]]
        lists = [MathNode("list", tuple(row), joint) if len(row) > 1 or closing == r"\}" else row[0] for row in rows]
        return lists[0] if len(lists) == 1 else MathNode("list", tuple(lists), joint)

    def relation(self) -> MathNode:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnreadableError("too deep")
        sides, signs = [self.side()], []
        while self.next.sign in _RELATIONS:
            signs.append(self.take().text)
            sides.append(self.side())
        self.depth -= 1
        return MathNode("relation", tuple(sides), " ".join(signs)) if signs else sides[0]

    def side(self) -> MathNode:
        node = self.difference()
        while self.skip("cup"):
            node = MathNode("union", (*(node.parts if node.kind == "union" else (node,)), self.difference()))
        return node

    def difference(self) -> MathNode:
        node = self.quantity()
        return MathNode("minus", (node, self.quantity())) if self.skip("setminus") else node

    def quantity(self) -> MathNode:
        """Read a value with or without a unit, or words, or several values with units."""
        if self.next.kind == "word" and (len(self.next.text) > 1 or self._words_follow()):
            return self.words()
        parts = [self.value()]
        while parts[-1][1] and self._begins():
            parts.append(self.value())
        if len(parts) > 1 and not all(units for _, units in parts):
            raise UnreadableError("a number without a unit among others")
        if parts[0][1] == "":
            return parts[0][0]
        return MathNode("quantity", tuple(value for value, _ in parts), "\n".join(units for _, units in parts))

    def _words_follow(self) -> bool:
        return self.second.kind == "word" and self.second.word not in _JOINTS

    def words(self) -> MathNode:
        words = []
        while self.next.kind == "word" and self.next.word not in _JOINTS:
            words.append(self.take().word)
        if self.next.word not in _JOINTS and self.next.sign not in ("", ",", ";", ")", "]", r"\}", "="):
            raise UnreadableError("words and mathematics")
        return MathNode("words", text=" ".join(words))

    def value(self) -> tuple[MathNode, str]:
        """Read a value and its unit. The unit is "" for a value without a unit."""
        node = self.ratio()
        while self.next.word in SCALES:
            node = _scaled(node, SCALES[self.take().word])
        bare, mark = _without_mark(node)
        units = [mark] if mark else []
        if mark == "degree" and self.next.text.lower() in _DEGREES:
            units = [_DEGREES[self.take().text.lower()]]
        elif self.next.kind == "word":
            units += self.unit()
        if len(units) > 1 and units[0] == units[1]:
            units = units[1:]  # "$5 dollars"
        unit = " ".join(units)
        return bare, SPEEDS.get(unit, unit)

    def unit(self) -> list[str]:
        """Read the words of a unit, with their powers and division signs."""
        units: list[str] = []
        while self.next.kind == "word" and self.next.word not in _JOINTS:
            word = self.take()
            if word.word == "per":
                units.append("/")
            elif word.word in _POWERS and self.next.kind == "word":
                units.append(unit(self.take().text) + _POWERS[word.word])
            else:
                units.append(unit(word.text) + self._power())
            if self.next.sign == "/" and self.second.kind == "word":
                units.append(self.take().text)
        return units

    def _power(self) -> str:
        if not self.skip("^"):
            return ""
        power = self.argument(whole=True)
        sign, power = ("-", power.parts[0]) if power.kind == "neg" else ("", power)
        if power.text not in ("1", "2", "3"):
            raise UnreadableError("a unit's power is 1, 2 or 3")
        return f"^{sign}{power.text}"


def _scaled(node: MathNode, digits: int) -> MathNode:
    if node.kind == "currency":
        return replace(node, parts=(_scaled(node.parts[0], digits),))
    return MathNode("*", (node, MathNode("^", (number("10"), number(str(digits))))), "scaled")


def _without_mark(node: MathNode) -> tuple[MathNode, str]:
    """A value without its mark, and the unit that the mark stands for: percent, degrees, a currency. "" without a
    mark."""
    if node.kind in ("percent", "degree", "currency"):
        return node.parts[0], {"percent": "%", "degree": "degree"}.get(node.kind, node.text)
    if node.kind == "neg" and node.parts[0].kind in ("percent", "degree", "currency"):
        inner, mark = _without_mark(node.parts[0])
        return MathNode("neg", (inner,)), mark
    if node.kind == "*" and node.parts[1].kind == "percent" and node.text != "scaled":
        return MathNode("*", (node.parts[0], node.parts[1].parts[0])), "%"
    return node, ""
