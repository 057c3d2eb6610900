"""A template's text as a function of unknown strings.

The template is rendered with `Symbol`s in place of some strings. A symbol remembers the number of its string, and the
template's changes. Each question of the template about a string (empty? with a certain beginning?) is answered for the
present string, and recorded as a `Guard`. So the text is valid for every string with the same answers:

    {{ '<tool>' + m.content | trim + '</tool>' }}   ->   "<tool>", Hole(0, strip), "</tool>"
    {% if m.content %}                              ->   Guard(Hole(0), bool, True)

Every question must be recorded. A symbol's methods see the questions of Python code. C code would read the symbol as a
plain string: `~`, `in`, `%`, joins, filters and tests. `trace` replaces this code. Other code raises
`UntraceableError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias


class UntraceableError(Exception):
    """The template uses a string in a way that cannot be traced."""


class Change(NamedTuple):
    """A change of a string by the template: a function with its other arguments."""

    function: Callable[..., str]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


class Hole(NamedTuple):
    """The place of a string in a text. `key` is the string's number, `changes` are the changes of the string."""

    key: int
    changes: tuple[Change, ...] = ()

    def value(self, values: Sequence[str]) -> str:
        """The text in this hole for the strings `values`."""
        value = values[self.key]
        for function, args, kwargs in self.changes:
            value = function(value, *args, **dict(kwargs))
        return value


TIME = -1
"""The key of a hole for the text of `strftime_now`, on which no bridge may depend."""

Part: TypeAlias = str | Hole


class Guard(NamedTuple):
    """A question of the template about a string, and the answer. The rendered text is valid for this answer."""

    hole: Hole
    function: Callable[..., Any]
    args: tuple[Any, ...]
    answer: Any

    def holds(self, values: Sequence[str]) -> bool:
        """Whether the question has the same answer for the strings `values`."""
        return bool(self.function(self.hole.value(values), *self.args) == self.answer)


class Trace:
    """The strings of a render, and the questions about the strings. The strings in `distinct` are known to differ."""

    def __init__(self, values: Sequence[str], distinct: Iterable[int] = ()) -> None:
        self.values, self.distinct = values, frozenset(distinct)
        self.guards: list[Guard] = []

    def symbol(self, key: int) -> Symbol:
        """The symbol for the string with number `key`."""
        return self.combined(self.values[key], [Hole(key)])

    def combined(self, value: str, parts: Iterable[Part]) -> Symbol:
        """The symbol for a text that consists of several parts."""
        symbol = Symbol(value)
        symbol._agentrl_parts, symbol._agentrl_trace = tuple(parts), self
        return symbol

    def ask(self, hole: Hole, function: Callable[..., Any], *args: Any) -> Any:
        """Record a question as a guard, and return the answer for the present string."""
        if hole.key == TIME:
            raise UntraceableError("its text depends on the time")
        guard = Guard(hole, function, args, function(hole.value(self.values), *args))
        if guard not in self.guards:
            self.guards.append(guard)
        return guard.answer


class Symbol(str):
    """A string with a record of questions and changes. Its value is the present string."""

    _agentrl_parts: tuple[Part, ...]
    _agentrl_trace: Trace

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined([other, self]) if isinstance(other, str) else NotImplemented

    def __len__(self) -> int:
        return int(_ask(self, len))

    def __bool__(self) -> bool:
        holes = [part for part in self._agentrl_parts if isinstance(part, Hole)]
        literal = len(holes) < len(self._agentrl_parts)  # no literal part is empty
        return literal or any(self._agentrl_trace.ask(hole, bool) for hole in holes)

    def __contains__(self, text: object) -> bool:
        return bool(_ask(self, str.__contains__, text))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        return _same(self, other) if isinstance(other, Symbol) else bool(_ask(self, str.__eq__, other))

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, str) else NotImplemented

    def __getitem__(self, index: Any) -> str:
        if isinstance(index, slice):
            return _changed(self, str.__getitem__, index)
        if isinstance(index, int):
            raise UntraceableError("it reads single characters of a text")
        return str.__getitem__(self, index)  # a TypeError, as for any string

    def __format__(self, spec: str) -> str:
        if spec:
            raise UntraceableError("it formats a text")
        return self

    def split(self, *args: Any, **kwargs: Any) -> list[str]:
        if len(args) != 1 or kwargs or not args[0] or args[0] in self:
            raise UntraceableError("it splits a text")
        return [self]


def joined(texts: Iterable[str]) -> str:
    """The joined texts: a Symbol if any text is a Symbol."""
    texts = list(texts)
    symbols = [text for text in texts if isinstance(text, Symbol)]
    if not symbols:
        return "".join(texts)
    parts = list[Part]()
    for part in (part for text in texts for part in parts_of(text)):
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return symbols[0]._agentrl_trace.combined("".join(map(value_of, texts)), parts)


def parts_of(text: str) -> tuple[Part, ...]:
    """The holes of a text, and the literal parts. No part is empty."""
    if isinstance(text, Symbol):
        return text._agentrl_parts
    return (text,) if text else ()


def value_of(text: str) -> str:
    """The present value of a symbol as a plain string."""
    return str.__str__(text)


def change(symbol: Symbol, function: Callable[..., str], *args: Any, **kwargs: Any) -> Symbol:
    """The symbol after a change by a pure function."""
    hole = _hole_of(symbol)
    step = Change(function, args, tuple(kwargs.items()))
    value = function(value_of(symbol), *args, **kwargs)
    return symbol._agentrl_trace.combined(value, [Hole(hole.key, (*hole.changes, step))])


def _same(first: Symbol, second: Symbol) -> bool:
    ours, theirs = first._agentrl_parts, second._agentrl_parts
    if ours == theirs:
        return True
    keys = [part.key for part in (*ours, *theirs) if isinstance(part, Hole) and not part.changes]
    if len(ours) == len(theirs) == 1 and len(keys) == 2 and first._agentrl_trace.distinct.issuperset(keys):
        return False
    raise UntraceableError("it compares texts with each other")


def _hole_of(symbol: Symbol) -> Hole:
    part = symbol._agentrl_parts[0]
    if len(symbol._agentrl_parts) != 1 or not isinstance(part, Hole):
        raise UntraceableError("it reads a text that it has put together")
    return part


def _check(args: Iterable[Any]) -> None:
    for arg in args:
        if isinstance(arg, Symbol):
            raise UntraceableError("it searches one text for another")
        if isinstance(arg, list | tuple):
            _check(arg)


def _ask(symbol: Symbol, function: Callable[..., Any], *args: Any) -> Any:
    _check(args)
    return symbol._agentrl_trace.ask(_hole_of(symbol), function, *args)


def _changed(symbol: Symbol, function: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    _check((*args, *kwargs.values()))
    return change(symbol, function, *args, **kwargs)


_CHANGING = (
    *("strip", "lstrip", "rstrip", "upper", "lower", "casefold", "capitalize", "swapcase", "title", "replace"),
    *("removeprefix", "removesuffix", "expandtabs", "center", "ljust", "rjust", "zfill"),
)
_ASKING = (
    *("startswith", "endswith", "find", "rfind", "count", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit"),
    *("islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"),
)
_OF_OBJECTS = {
    *("__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__getattribute__", "__doc__"),
    *("__setattr__", "__delattr__", "__dir__", "__sizeof__", "__reduce__", "__reduce_ex__", "__getstate__"),
}
"""Attributes of str that reveal nothing about the string's value."""
_READING = ("__int__", "__float__", "__complex__", "__rmod__", "__reversed__")
"""Methods that a string lacks. Other code uses these methods to read a value."""


def _changes(name: str) -> Callable[..., str]:
    function = getattr(str, name)
    return lambda self, *args, **kwargs: _changed(self, function, *args, **kwargs)


def _asks(name: str) -> Callable[..., Any]:
    function = getattr(str, name)
    return lambda self, *args: _ask(self, function, *args)


def _refuses(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UntraceableError(f"it uses {name.strip('_')} on a text")

    return refuse


def _cover() -> None:
    """Define all other methods of str in Symbol, so that no method reads a symbol without a record."""
    defined = set(vars(Symbol)) - {"__hash__"} | _OF_OBJECTS
    for name in {*dir(str), *_READING} - defined:
        kinds = (_CHANGING, _changes), (_ASKING, _asks)
        make = next((make for names, make in kinds if name in names), _refuses)
        setattr(Symbol, name, make(name))


_cover()
