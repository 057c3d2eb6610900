"""The value of a tree, exact for rational values, and whether two trees have equal values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial, reduce
from random import Random
from typing import Any, TypeAlias

from mpmath import mp

from .nodes import MathNode, UnreadableError, free_names

Value: TypeAlias = Any
"""A value: a Fraction, or a number of mpmath."""

_BITS, _BITS_AT_A_POINT = 200_000, 20_000
"""The most bits of a rational power that is computed exactly. _BITS: in a constant. _BITS_AT_A_POINT: at each point of
an expression with variables."""
_DIGITS, _MOST_DIGITS = 50, 4_000
_LARGEST = 10**9
"""The largest exponent, and the largest argument of a function. Beyond, mpmath would take too long."""
_LARGEST_FACTORIAL = 5_000
_LARGEST_CHOICE = 100
_MOST_TERMS = 1_000
_ENOUGH = 3
"""The number of points at which two expressions must have equal values to count as equal. A single difference makes
them unequal."""
_SIMPLE: dict[str, Any] = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc, "sinh": mp.sinh,
    "cosh": mp.cosh, "tanh": mp.tanh, "exp": mp.exp, "arctan": mp.atan,
}  # fmt: skip
_BOUNDED: dict[str, Any] = {"arcsin": mp.asin, "arccos": mp.acos}


class NoValueError(Exception):
    """An expression has no value at a point, or an uncertain value. The point is left out of a comparison."""


class _Evaluation:
    """Evaluates an expression at a point.

    `real`: a root or a logarithm of a negative number has no value. `peak` is the largest number of digits, before or
    after the decimal point, of the values so far. A computation needs more digits than `peak` to see every term.
    """

    def __init__(self, point: Mapping[str, Fraction], *, real: bool) -> None:
        self.point, self.real, self.peak = point, real, 0
        self.indices: dict[str, Fraction] = {}
        self.bits = _BITS_AT_A_POINT if point else _BITS

    def value(self, node: MathNode) -> Value:
        try:
            value = self._value(node)
        except (ZeroDivisionError, OverflowError, ValueError) as exc:
            raise NoValueError(str(exc)) from exc
        if not isinstance(value, Fraction):
            if not mp.isfinite(value):
                raise NoValueError("infinite")
            if isinstance(value, mp.mpc) and value.imag == 0:
                value = value.real
        if value:
            self.peak = max(self.peak, _digits(value))
        return value

    def _value(self, node: MathNode) -> Value:
        if node.kind == "number":
            return fraction(node.text)
        if node.kind == "name":
            return self._name(node.text)
        if node.kind in ("sum", "prod"):
            return self._series(node)
        values = [self.value(part) for part in node.parts]
        if node.kind in _OPERATIONS:
            return _OPERATIONS[node.kind](values)
        if node.kind in _SIMPLE:
            return _SIMPLE[node.kind](_float(_bounded(values[0], _LARGEST)))
        if node.kind in _BOUNDED:
            return _BOUNDED[node.kind](_float(_bounded(values[0], 1 if self.real else _LARGEST)))
        if node.kind in ("^", "root", "log"):
            return {"^": self._power, "root": self._root, "log": self._log}[node.kind](*values)
        if node.kind == "call":
            return _unknown(f"{node.text} {self.point[node.text]}", values)
        raise UnreadableError(f"{node.kind} has no value")

    def _name(self, text: str) -> Value:
        constants = {"pi": lambda: +mp.pi, "e": lambda: +mp.e, "i": lambda: mp.mpc(0, 1)}
        if text in constants:
            return constants[text]()
        index = text.partition("_")[2]
        running = [value for name, value in self.indices.items() if name in index]
        return _unknown(f"{text} {self.point[text]}", running) if running else self.point[text]

    def _series(self, node: MathNode) -> Value:
        """The value of a sum or product over an index. A series with too many or infinitely many terms gets a value
        that only the same series has."""
        first, last = (None if part.has("inf") else self.value(part) for part in node.parts[:2])
        body = partial(self._term, node.parts[2], node.text)
        if first is None or last is None:
            ends = [end for end in (first, last) if end is not None]
            return _unknown(f"{node.kind} {first is None}", [*ends, body(Fraction(211, 97))])
        if not (_is_whole(first) and _is_whole(last) and 0 <= last - first < _MOST_TERMS):
            raise NoValueError("no index from a whole number to another")
        terms = [body(Fraction(index)) for index in range(int(first), int(last) + 1)]
        join = _plus if node.kind == "sum" else _times
        return reduce(lambda total, term: join([total, term]), terms)

    def _term(self, node: MathNode, name: str, index: Fraction) -> Value:
        point, indices = self.point, self.indices
        self.point, self.indices = {**point, name: index}, {**indices, name: index}
        try:
            return self.value(node)
        finally:
            self.point, self.indices = point, indices

    def _power(self, base: Value, exponent: Value) -> Value:
        whole = _is_whole(exponent)
        _bounded(exponent, _LARGEST)
        if whole and isinstance(base, Fraction) and abs(exponent) * _bits(base) <= self.bits:
            return base ** int(exponent)
        if not whole:
            self._refuse_negative(base)
        return mp.power(_float(base), int(exponent) if whole else _float(exponent))

    def _root(self, base: Value, index: Value) -> Value:
        if not (_is_whole(index) and 1 < index < 1000):
            raise NoValueError("a root of no whole number")
        if index % 2 and _is_real(base) and base < 0:
            return -mp.root(_float(-base), int(index))
        self._refuse_negative(base)
        return mp.root(_float(base), int(index))

    def _log(self, argument: Value, base: Value) -> Value:
        self._refuse_negative(argument)
        if not argument:
            raise NoValueError("the logarithm of 0")
        return mp.log(_float(argument)) / mp.log(_float(base))

    def _refuse_negative(self, value: Value) -> None:
        if self.real and not (_is_real(value) and value >= 0):
            raise NoValueError("not real")


def fraction(text: str) -> Fraction:
    """The number that digits stand for. In `text`, `r` stands before the digits that repeat."""
    fixed, _, repeated = text.partition("r")
    value = Fraction(fixed.removesuffix(".") if fixed.endswith(".") else fixed)
    if not repeated:
        return value
    places = len(fixed.partition(".")[2])
    return value + Fraction(int(repeated), 10**places * (10 ** len(repeated) - 1))


def constant(node: MathNode) -> Fraction | None:
    """The exact value of an expression without variables; None if the value is not rational or not exact."""
    try:
        value = None if free_names(node) else _Evaluation({}, real=False).value(node)
    except (NoValueError, UnreadableError):
        return None
    return value if isinstance(value, Fraction) else None


def same_value(a: MathNode, b: MathNode) -> bool:
    """Whether two expressions are equal at every point where both have a value."""
    return _agree((a, b), lambda values, peak: _close(*values, peak=peak))


def same_near(a: MathNode, b: MathNode) -> bool:
    """Whether two values differ by less than a hundredth of the first value."""
    return _agree((a, b), lambda values, peak: _near(*values))


def same_ratio(a: MathNode, b: MathNode, *, positive: bool = False) -> bool:
    """Whether two expressions differ only by a constant factor other than 0. `positive`: the factor must be
    positive."""
    first: list[Value] = []

    def agree(values: list[Value], peak: int) -> bool:
        if not first:
            if not all(values):
                return not any(values)
            first.extend(values)
        ratio = _plus([_times([values[0], first[1]]), -_times([first[0], values[1]])])
        if positive and all(values) and not (_is_real(quotient := _over(values)) and quotient > 0):
            return False
        return _close(ratio, Fraction(0), peak=2 * peak)

    return _agree((a, b), agree) and bool(first)


def _agree(nodes: tuple[MathNode, ...], agree: Callable[[list[Value], int], bool]) -> bool:
    """Whether `agree` accepts the nodes' values at every point where all values exist, and at enough points."""
    names = sorted(free_names(*nodes))
    real = bool(names) and not any(node.text == "i" for top in nodes for node in top.walk())
    seen = 0
    for point in _points(names):
        try:
            values, peak = _values(nodes, point, real=real)
        except NoValueError:
            continue
        with mp.workdps(_DIGITS + 3 * peak + 20):
            if not agree(values, peak):
                return False
        seen += 1
    return seen >= (_ENOUGH if names else 1)


def _values(nodes: tuple[MathNode, ...], point: Mapping[str, Fraction], *, real: bool) -> tuple[list[Value], int]:
    """The values of the nodes at a point, with as many digits as are needed to see every term, and the largest number
    of digits of a value."""
    peak = 0
    for digits in (_DIGITS, 0):
        evaluation = _Evaluation(point, real=real)
        with mp.workdps(digits or _DIGITS + 3 * peak):
            values = [evaluation.value(node) for node in nodes]
        peak = max(peak, evaluation.peak)
        if all(isinstance(value, Fraction) for value in values):
            break
        if peak > _MOST_DIGITS:
            raise NoValueError("too many digits")
    return values, peak


def _close(a: Value, b: Value, *, peak: int) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    return bool(abs(_float(a) - _float(b)) < mp.mpf(10) ** (-peak - 30))


def _near(a: Value, b: Value) -> bool:
    return bool(abs(_float(a) - _float(b)) * 100 < abs(_float(a)))


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """The points of a comparison: values for the variables that are between 0 and 1, larger, large, of both signs, and
    whole."""
    ranges = [(1, 96, 97)] * 3 + [(98, 500, 97)] * 3 + [(500, 9700, 97)] * 2 + [(-500, 500, 97)] * 5
    ranges += [(1, 9, 1)] * 3 + [(10, 40, 1)] * 2
    for row, (low, high, below) in enumerate(ranges if names else [(0, 0, 1)]):
        yield {text: Fraction(Random(f"{row} {text}").randint(low, high), below) for text in names}


def _unknown(text: str, values: list[Value]) -> Fraction:
    """A pseudo-random value for a call of an unknown function: a different number for each argument."""
    arguments = [str(value) if isinstance(value, Fraction) else mp.nstr(value, 25) for value in values]
    return Fraction(Random(f"{text} {arguments}").randint(98, 970), 97)


def _bounded(value: Value, most: int) -> Value:
    if abs(value) > most:
        raise NoValueError("too large")
    return value


def _plus(values: list[Value]) -> Value:
    a, b = _alike(*values)
    return a + b


def _times(values: list[Value]) -> Value:
    a, b = _alike(*values)
    return a * b


def _over(values: list[Value]) -> Value:
    a, b = _alike(*values)
    return a / b


def _factorial(values: list[Value]) -> Value:
    (value,) = values
    if not isinstance(value, Fraction) or value > _LARGEST_FACTORIAL:
        raise NoValueError("no factorial")
    if value.denominator == 1:
        return Fraction(math.factorial(int(value)))
    return mp.gamma(_float(value + 1))


def _binomial(values: list[Value]) -> Value:
    above, below = values
    if not all(isinstance(value, Fraction) and abs(value) <= _LARGEST_FACTORIAL for value in values):
        raise NoValueError("no binomial")
    if below.denominator == 1 and 0 <= below <= (_LARGEST_FACTORIAL if above.denominator == 1 else _LARGEST_CHOICE):
        return math.prod((Fraction(above - step, step + 1) for step in range(int(below))), start=Fraction(1))
    return mp.binomial(_float(above), _float(below))


def _rounded(kind: str, value: Value) -> Value:
    if isinstance(value, Fraction):
        return Fraction(math.floor(value) if kind == "floor" else math.ceil(value))
    if not _is_real(value) or abs(value - mp.nint(value)) < mp.mpf(10) ** (-mp.dps // 2):
        raise NoValueError("too near to a whole number")
    return Fraction(int(mp.floor(value) if kind == "floor" else mp.ceil(value)))


_OPERATIONS: dict[str, Callable[[list[Value]], Value]] = {
    "+": _plus,
    "*": _times,
    "/": _over,
    "neg": lambda values: -values[0],
    "abs": lambda values: abs(values[0]),
    "!": _factorial,
    "binom": _binomial,
    "floor": lambda values: _rounded("floor", values[0]),
    "ceil": lambda values: _rounded("ceil", values[0]),
    "percent": lambda values: values[0] / 100,
    "degree": lambda values: _float(values[0]) * mp.pi / 180,
}


def _alike(a: Value, b: Value) -> tuple[Value, Value]:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a, b
    return _float(a), _float(b)


def _float(value: Value) -> Value:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_real(value: Value) -> bool:
    return isinstance(value, Fraction | mp.mpf)


def _is_whole(value: Value) -> bool:
    return isinstance(value, Fraction) and value.denominator == 1


def _digits(value: Value) -> int:
    """The number of decimal digits before the point of a large value, or after the point of a small value."""
    bits = _bits(value) if isinstance(value, Fraction) else abs(mp.mag(value))
    return int(bits * 0.30103) + 1


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
