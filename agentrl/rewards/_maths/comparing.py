"""Compares the tree of an answer with the tree of a label."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from .nodes import CONSTANTS, MathNode, UnreadableError, branches, free_names, number
from .values import constant, fraction, same_near, same_ratio, same_value

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_PLACES = 6
"""The number of decimal places from which a decimal number may be a rounded value."""
_STRUCTURES = {"list", "relation", "matrix", "row", "union", "minus", "ratio", "based", "words", "inf"}
_MOST_ITEMS = 60


def same_answer(label: MathNode, answer: MathNode) -> bool:
    """Whether the answer equals the label. Raises UnreadableError."""
    label, answer = _spread(label), _spread(answer)
    if answer.kind == "relation" and answer.text.endswith("approx"):
        return _same_about(label, answer)
    if label.kind == answer.kind == "relation":
        return _same_relation(label, answer) or _same_range(label, answer)
    if answer.kind == "relation" and (value := _stated(answer)):
        return same_answer(label, value)
    if label.kind == "relation" and (value := _stated(label)):
        return same_answer(value, answer)
    if "relation" in (label.kind, answer.kind) or "union" in (label.kind, answer.kind):
        return _same_range(label, answer)
    return _same_parts(label, answer)


def _same_parts(label: MathNode, answer: MathNode) -> bool:
    if "list" in (label.kind, answer.kind):
        return _same_list(label, answer)
    structures = {label.kind, answer.kind} & _STRUCTURES
    if not structures and "quantity" not in (label.kind, answer.kind):
        return same_number(label, answer)
    if structures and label.kind == answer.kind:
        return label.text == answer.text and _same_each(label.parts, answer.parts)
    if structures and _sign_of_infinity(label) and _sign_of_infinity(answer):
        return _sign_of_infinity(label) == _sign_of_infinity(answer)
    if "quantity" in (label.kind, answer.kind):
        return _same_quantity(label, answer)
    return False


def _same_each(labels: tuple[MathNode, ...], answers: tuple[MathNode, ...]) -> bool:
    return len(labels) == len(answers) and all(map(same_answer, labels, answers))


def _same_about(label: MathNode, answer: MathNode) -> bool:
    r"""Whether an answer such as "exact \approx decimal" is right: the exact or the decimal value equals the label, and
    both values are near each other."""
    *exact, decimal = answer.parts
    shorter = exact[0] if len(exact) == 1 else MathNode("relation", tuple(exact), answer.text.rpartition(" ")[0])
    value = _stated(shorter) if shorter.kind == "relation" else shorter
    if value is None or "approx" in shorter.text:
        return False
    if _is_quantity(value):
        return same_answer(label, MathNode("relation", answer.parts, answer.text.removesuffix("approx") + "="))
    return same_near(value, decimal) and (same_answer(label, shorter) or same_answer(label, decimal))


# numbers


def same_number(label: MathNode, answer: MathNode) -> bool:
    """Whether two values are equal. If the label is a number, the answer must be a number, too: an expression that the
    reader would have to compute is not equal."""
    if _written(label) and not _is_computed(answer, whole=fraction(_written(label)).denominator == 1):
        return False
    return label == answer or _equal(label, answer) or _rounds_to(label, answer) or _rounds_to(answer, label)


def _written(node: MathNode) -> str:
    """The digits of a number, without the sign; "" if the node is no number."""
    node = node.parts[0] if node.kind == "neg" else node
    return node.text if node.kind == "number" else ""


def _is_computed(node: MathNode, *, whole: bool) -> bool:
    """Whether nothing is left to compute: the node is a number, a number with a power of ten, or, unless `whole`, a
    fraction."""
    if node.kind == "neg":
        return node.parts[0].kind != "neg" and _is_computed(node.parts[0], whole=whole)
    if node.kind == "*":
        return bool(_written(node.parts[0])) and _is_power_of_ten(node.parts[1]) and _is_scientific(node)
    if whole:
        return node.kind == "number"
    if node.kind == "/" or (node.kind == "+" and node.text == "mixed"):
        return all(part.text == "frac" or (part.kind == "number" and "r" not in part.text) for part in node.parts)
    return node.kind == "number" or _is_power_of_ten(node)


def _is_power_of_ten(node: MathNode) -> bool:
    return node.kind == "^" and node.parts[0].text == "10" and bool(_written(node.parts[1]))


def _is_scientific(node: MathNode) -> bool:
    return node.text == "scaled" or 1 <= fraction(node.parts[0].text or "0") < 10


def _rounds_to(decimal: MathNode, exact: MathNode) -> bool:
    """Whether a decimal number with many places is the value `exact`, rounded to the same number of places."""
    digits = _written(decimal)
    places = len(digits.partition(".")[2])
    if places < _PLACES or len(digits.replace(".", "").lstrip("0")) < _PLACES or "r" in digits or free_names(exact):
        return False
    if _written(exact) and len(_written(exact).partition(".")[2]) <= places:
        return False
    power = number(str(10**places))
    size = MathNode("neg", (exact,)) if decimal.kind == "neg" else exact
    rounded = MathNode("floor", (MathNode("+", (MathNode("*", (size, power)), number("0.5"))),))
    return _equal(rounded, MathNode("*", (number(digits), power)))


# units


def _same_quantity(label: MathNode, answer: MathNode) -> bool:
    labels, answers = _units(label), _units(answer)
    if len(labels) != len(answers):
        return False
    return all(_same_measure(*pair) for pair in zip(_measures(label), labels, _measures(answer), answers, strict=True))


def _measures(node: MathNode) -> tuple[MathNode, ...]:
    return node.parts if node.kind == "quantity" else (node,)


def _units(node: MathNode) -> list[str]:
    return node.text.split("\n") if node.kind == "quantity" else [""]


def _as_list(node: MathNode) -> MathNode:
    """A quantity with several units, such as "5 hours 20 minutes", as a list of quantities. Any other node is
    unchanged."""
    if node.kind != "quantity" or len(node.parts) < 2:
        return node
    measures = zip(node.parts, _units(node), strict=True)
    return MathNode("list", tuple(MathNode("quantity", (value,), unit) for value, unit in measures), "and")


def _same_measure(label: MathNode, unit: str, answer: MathNode, other: str) -> bool:
    """Whether two values with units are equal. Either side may lack the unit. A number above 1 may lack the percent
    sign; a smaller number without this sign is not percent: 0.5 equals 50 %."""
    if unit == other or not {unit, other} & {"%"}:
        absent = "" in (unit, other) and unit not in ("am", "pm")
        return (unit == other or absent) and same_number(label, answer)
    if {unit, other} != {"%", ""}:
        return False
    bare, percent = (answer, label) if unit else (label, answer)
    size = constant(bare)
    if size is not None and abs(size) > 1 and same_number(label, answer):
        return True
    hundredths = MathNode("/", (percent, number("100")), "frac")
    computed = not _written(label) or _is_computed(answer, whole=False)
    return computed and same_value(bare, hundredths)


# lists, sets, pairs


def _same_list(label: MathNode, answer: MathNode) -> bool:
    label, answer = _as_list(label), _as_list(answer)
    if label.kind != answer.kind:
        return _same_range(label, answer)
    ordered = "(" in label.text + answer.text or "[" in label.text + answer.text
    brackets = [node.text for node in (label, answer) if node.text[:1] in ("(", "[", "\\")]
    if len(set(brackets)) > 1 or max(len(label.parts), len(answer.parts)) > _MOST_ITEMS:
        return False
    if {label.text, answer.text} == {"and", "or"} and _says_which(label):
        return False
    if ordered or _names_differ(label, answer):
        return _same_each(label.parts, answer.parts)
    return _same_in_any_order(label.parts, answer.parts)


def _same_in_any_order(labels: tuple[MathNode, ...], answers: tuple[MathNode, ...]) -> bool:
    open_answers = list(answers if len(answers) <= len(labels) else dict.fromkeys(answers))
    for label in labels:
        match = next((answer for answer in open_answers if same_answer(label, answer)), None)
        if match is None:
            return False
        open_answers.remove(match)
    return not open_answers


def _says_which(node: MathNode) -> bool:
    """Whether "and" and "or" between the parts mean different things: between inequalities, or equations of two
    variables."""
    relations = [part for part in node.parts if part.kind == "relation"]
    return any(part.text[0] in "<>!" for part in relations) or len({part.parts[0] for part in relations}) > 1


def _names_differ(label: MathNode, answer: MathNode) -> bool:
    """Whether only a single side names its values, and the names differ, as in "x = 1, y = 2". Then the order of the
    values counts."""
    sides = [[part.parts[0] for part in node.parts if part.kind == "relation"] for node in (label, answer)]
    return bool(sides[0]) != bool(sides[1]) and len(set(sides[0] or sides[1])) > 1


def _spread(node: MathNode) -> MathNode:
    """The node with two values for a plus-minus sign, and with "x = 1, 2" as "x = 1, x = 2"."""
    if node.kind != "list" or node.text[:1] in ("(", "["):
        both = branches(node)
        return MathNode("list", tuple(both), ",") if len(both) == 2 else node
    parts = [branch for part in node.parts for branch in branches(part)]
    first, *others = parts
    if first.kind == "relation" and first.text == "=" and all(part.kind != "relation" for part in others):
        parts = [first, *(MathNode("relation", (first.parts[0], part), "=") for part in others)]
    return replace(node, parts=tuple(parts))


# equations, inequalities, intervals


def _stated(relation: MathNode) -> MathNode | None:
    """The value that a relation states: 5 in "x = 5", "f(3) = 5" and "2 + 3 = 5"; the set in "x in S"."""
    if set(relation.text.split()) - {"=", "in", "approx"}:
        return None
    first, last = relation.parts[0], relation.parts[-1]
    if not _is_quantity(first) and free_names(first):
        return None
    if not _is_quantity(first) and relation.text == "in":
        return None
    between = relation.parts[1:-1] if _is_quantity(first) else relation.parts[:-1]
    return last if all(part == last or _equal(part, last) or _rounds_to(last, part) for part in between) else None


def _equal(a: MathNode, b: MathNode) -> bool:
    """Whether two nodes have equal values. False if a node has no value."""
    try:
        return same_value(a, b)
    except UnreadableError:
        return False


def _is_quantity(node: MathNode) -> bool:
    """Whether the node names a quantity: x, f(3), AB, a+b, |v|, a word. A node with numbers would be an equation to
    solve."""
    if node.kind in ("words", "call"):
        return True
    if node.kind == "name":
        return node.text not in CONSTANTS
    return node.kind in ("+", "*", "/", "abs", "neg", "list", "ratio") and all(map(_is_quantity, node.parts))


def _same_relation(label: MathNode, answer: MathNode) -> bool:
    label, answer = _shortened(label), _shortened(answer)
    if len(label.parts) != len(answer.parts):
        return False
    if not any(free_names(part) for part in (*label.parts, *answer.parts)) and not label.has("words"):
        return label == answer
    for other in (answer, _turned(answer)):
        if label.text == other.text and _same_each(label.parts, other.parts):
            return True
    if len(label.parts) > 2 or (label.text == "=" and _is_quantity(label.parts[0]) and _written(label.parts[1])):
        return False
    return any(label.text == other.text and _same_difference(label, other) for other in (answer, _turned(answer)))


def _same_difference(label: MathNode, answer: MathNode) -> bool:
    if label.text not in _FLIPPED or any(part.kind in _STRUCTURES for part in (*label.parts, *answer.parts)):
        return False
    differences = [MathNode("+", (node.parts[0], MathNode("neg", (node.parts[1],)))) for node in (label, answer)]
    if not all(map(free_names, differences)):
        return False
    return same_ratio(*differences, positive=label.text not in ("=", "!="))


def _shortened(relation: MathNode) -> MathNode:
    """A chain of equations, such as a = b = 5, as an equation of the first and the last side. Any other node is
    unchanged."""
    if len(relation.parts) > 2 and _is_quantity(relation.parts[0]) and _stated(relation):
        return MathNode("relation", (relation.parts[0], relation.parts[-1]), "=")
    return relation


def _turned(relation: MathNode) -> MathNode:
    signs = [_FLIPPED.get(sign, "") for sign in reversed(relation.text.split())]
    return MathNode("relation", relation.parts[::-1], " ".join(signs))


def _same_range(label: MathNode, answer: MathNode) -> bool:
    """Whether both nodes are the same intervals, of the same variable if both name a variable."""
    if label.kind == answer.kind == "union" and _same_in_any_order(label.parts, answer.parts):
        return True
    labels, answers = _range(label), _range(answer)
    if labels is None or answers is None or len(labels[1] | answers[1]) > 1:
        return False
    return _same_in_any_order(labels[0], answers[0])


def _range(node: MathNode) -> tuple[tuple[MathNode, ...], set[MathNode]] | None:
    """The intervals of a node, and their variables."""
    if node.kind == "list" and node.text[:1] in ("(", "["):
        return ((node,), set()) if len(node.parts) == 2 else None
    if node.kind == "relation":
        return _interval(node)
    listed = node.kind == "list" and (node.text == "or" or (node.text == "," and not node.has("relation")))
    if node.kind == "union" or listed:
        ranges = [span for part in node.parts if (span := _range(part))]
        if len(ranges) == len(node.parts):
            return tuple(chain.from_iterable(span[0] for span in ranges)), set().union(*(span[1] for span in ranges))
    return None


def _interval(relation: MathNode) -> tuple[tuple[MathNode, ...], set[MathNode]] | None:
    relation = _turned(relation) if ">" in relation.text else relation
    signs, parts = relation.text.split(), relation.parts
    variables = {part for part in parts if _is_quantity(part)}
    if len(variables) != 1:
        return None
    if signs == ["in"]:
        inside = _range(parts[1])
        return inside and (inside[0], variables)
    if signs == ["!="]:
        value = parts[1] if _is_quantity(parts[0]) else parts[0]
        below, above = (_MINUS_INFINITY, value), (value, _INFINITY)
        return (MathNode("list", below, "()"), MathNode("list", above, "()")), variables
    span = _between(signs, parts) if set(signs) <= {"<", "<="} else None
    return None if span is None else ((span,), variables)


def _between(signs: list[str], parts: tuple[MathNode, ...]) -> MathNode | None:
    """The interval of `a < x <= b`, or of `x < b` or `a <= x` with an infinite end."""
    if len(parts) == 2:
        parts = (_MINUS_INFINITY, *parts) if _is_quantity(parts[0]) else (*parts, _INFINITY)
        signs = ["<", *signs] if parts[0] is _MINUS_INFINITY else [*signs, "<"]
    if len(parts) != 3 or not _is_quantity(parts[1]):
        return None
    brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    return MathNode("list", (parts[0], parts[2]), brackets)


_INFINITY = MathNode("inf")
_MINUS_INFINITY = MathNode("neg", (_INFINITY,))


def _sign_of_infinity(node: MathNode) -> int:
    if node.kind == "neg":
        return -_sign_of_infinity(node.parts[0])
    return int(node.kind == "inf")
