"""Run functions before or after the import of a module, in any process, without an edit of the module.

A finder stands first on `sys.meta_path`. For a module with a hook the finder asks the other finders, and wraps the
loader that they return.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

Before = TypeVar("Before", bound=Callable[[], None])
After = TypeVar("After", bound=Callable[[Any], None])

_before: dict[str, list[Callable[[], None]]] = {}
_after: dict[str, list[Callable[[Any], None]]] = {}


def before(*names: str) -> Callable[[Before], Before]:
    """Decorate a function that is called before any of the modules is executed."""
    return _adder(_before, names)


def after(*names: str) -> Callable[[After], After]:
    """Decorate a function that is called with each of the modules after its execution, before anybody imports from
    the module."""
    return _adder(_after, names)


def _adder(hooks: dict[str, list[Any]], names: tuple[str, ...]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for name in names:
            hooks.setdefault(name, []).append(function)
            if name in sys.modules and hooks is _after:
                function(sys.modules[name])
        return function

    return add


def install() -> None:
    """Activate the hooks in this process. A second call has no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if (fullname not in _before and fullname not in _after) or fullname in self._searching:
            return None
        self._searching.add(fullname)  # `find_spec` below asks this finder too
        try:
            spec = find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, fullname)
        return spec


class _HookedLoader(Loader):
    """A module's own loader, with the module's hooks."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader, self._name = loader, name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        for prepare in _before.get(self._name, ()):
            prepare()
        self._loader.exec_module(module)
        for change in _after.get(self._name, ()):
            change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and others, for tracebacks and inspect
