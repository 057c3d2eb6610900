"""Compare state that outlives an episode: class attributes, module globals, and `shared`."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from random import Random
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel

from agentrl._util.findings import Place
from agentrl.check.places import AuthorCode
from agentrl.env.factory import EnvFactory

_DEEPEST, _MOST = 6, 3000
_CODE = (type, ModuleType, FunctionType, MethodType, classmethod, staticmethod, property)


class StateName(NamedTuple):
    """The name of an object that outlives an episode."""

    kind: str
    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


Pictures = Mapping[StateName, Any]


def pictures(author: AuthorCode, envs: EnvFactory) -> Pictures:
    """A comparable copy (see `picture`) of each object that outlives an episode."""
    values = {StateName("shared", "", "self.shared"): envs.shared}
    for base in author.classes:
        for name, value in vars(base).items():
            if _is_data(name, value):
                values[StateName("class", base.__name__, name)] = value
    for module in author.modules:
        for name, value in list(vars(module).items()):
            if _is_data(name, value):
                values[StateName("module", "", name)] = value
    return {name_of_state: picture(value, author) for name_of_state, value in values.items()}


def picture(value: Any, author: AuthorCode) -> Any:
    """A value as nested tuples, which differ if the value changed.

    Objects of classes that the author did not write are compared by identity only.
    """
    return _Painter(author).paint(value, 0)


def changed(before: Pictures, after: Pictures) -> set[StateName]:
    return {state for state, seen in after.items() if state in before and before[state] != seen}


class Culprit:
    """Watches a `with` block. `place` is the line of the author's code that changed the result of `look`, or None."""

    def __init__(self, author: AuthorCode, look: Callable[[], Any]) -> None:
        self._author, self._look = author, look
        self.place: Place | None = None
        self._last: dict[int, Place] = {}
        self._looking = False

    def __enter__(self) -> Culprit:
        self._before, self._traced = self._look(), sys.gettrace()
        sys.settrace(self._call)
        threading.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._traced)
        threading.settrace(self._traced)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.place is not None or self._looking or not self._author.has(frame.f_code.co_filename):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.place is not None or self._looking:
            return None
        thread = threading.get_ident()
        self._looking = True
        try:
            if self._look() != self._before:
                self.place = self._last.get(thread) or Place(frame.f_code.co_filename, frame.f_lineno)
        finally:
            self._looking = False
        self._last[thread] = Place(frame.f_code.co_filename, frame.f_lineno)
        return self._line


class _Painter:
    def __init__(self, author: AuthorCode) -> None:
        self._author, self._budget, self._inside = author, _MOST, set[int]()

    def paint(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        self._budget -= 1
        if depth > _DEEPEST or self._budget < 0 or id(value) in self._inside:
            return "..."
        self._inside.add(id(value))
        try:
            return self._held(value, depth + 1)
        finally:
            self._inside.discard(id(value))

    def _held(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return ("dict", *((str(key), self.paint(item, depth)) for key, item in list(value.items())))
        if isinstance(value, set | frozenset):
            return ("set", frozenset(map(repr, list(value)[:_MOST])))
        if isinstance(value, list | tuple | deque):
            return ("list", *(self.paint(item, depth) for item in list(value)))
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, Random):
            return hash(value.getstate())
        if isinstance(value, BaseModel):
            return ("model", *((name, self.paint(item, depth)) for name, item in dict(value).items()))
        if self._is_own(type(value)):
            return (type(value).__name__, *self._attributes(value, depth))
        return f"{type(value).__qualname__} {id(value)}"

    def _attributes(self, value: Any, depth: int) -> list[Any]:
        values = dict(getattr(value, "__dict__", {}))
        if is_dataclass(value):
            values |= {field.name: getattr(value, field.name, None) for field in fields(value)}
        return [(name, self.paint(item, depth)) for name, item in values.items()]

    def _is_own(self, cls: type) -> bool:
        module = sys.modules.get(cls.__module__)
        return self._author.has(getattr(module, "__file__", None) or "<none>")


def _is_data(name: str, value: Any) -> bool:
    return not (name.startswith(("__", "_abc_", "_agentrl")) or callable(value) or isinstance(value, _CODE))
