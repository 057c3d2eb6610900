"""Old paths of modules and old names: each works for one version, with a warning that names the new one."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOVED = {
    "agentrl.boundary": "agentrl._util.boundary",
    "agentrl.completions": "agentrl.chat.completions",
    "agentrl.conversation": "agentrl.episode.conversation",
    "agentrl.engine.player": "agentrl.chat.engine",
    "agentrl.env_config": "agentrl.env.config",
    "agentrl.episode_keys": "agentrl.episode.config",
    "agentrl.gateway.options": "agentrl.chat.options",
    "agentrl.gateway.request": "agentrl.chat.request",
    "agentrl.http": "agentrl._util.http",
    "agentrl.loading": "agentrl._util.loading",
    "agentrl.options": "agentrl.episode.options",
    "agentrl.parking": "agentrl.episode.parking",
    "agentrl.registry": "agentrl.env.registry",
    "agentrl.replies": "agentrl.episode.bad_calls",
    "agentrl.resume": "agentrl.episode.resume",
    "agentrl.render.content": "agentrl._util.texts",
    "agentrl.rewards.code": "agentrl_envs.coding.unit_tests",
    "agentrl.rewards.suites": "agentrl_envs.coding.suites",
    "agentrl.runtime": "agentrl.env.runtime",
    "agentrl.scoring": "agentrl.episode.scoring",
    "agentrl.segment": "agentrl.trajectory.segment",
    "agentrl.simulation": "agentrl.chat.simulation",
    "agentrl.spans": "agentrl.trajectory.spans",
    "agentrl.spoken": "agentrl.episode.chat_transcript",
    "agentrl.thoughts": "agentrl.episode.reasoning",
    "agentrl.tool_calls": "agentrl.env.tool_calls",
    "agentrl.tools": "agentrl.env.tools",
    "agentrl.written": "agentrl.trajectory.model_output",
}
"""Old -> new. Delete this file, and its line in `__init__`, in version 0.3."""


class _Finder(MetaPathFinder, Loader):
    _own: ModuleSpec | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} is {new} now; the old path works in this version only", DeprecationWarning, 2)
        module = importlib.import_module(new)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has already run under its new name: restore the spec that the import system has replaced."""
        module.__spec__ = self._own


def answer_old_paths() -> None:
    """Let imports of moved modules succeed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def old_name(module: str, name: str) -> Any:
    """The object `name` of a module that is a package now. Its main module `module` holds it. Raises AttributeError."""
    package = module.rpartition(".")[0]
    found = None if name.startswith("_") else getattr(importlib.import_module(module), name, None)
    if found is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    warnings.warn(
        f"{package}.{name} is {module}.{name} now; the old path works in this version only", DeprecationWarning, 3
    )
    return found


def renamed(module: str, name: str, **names: str) -> Any:
    """For a module's `__getattr__`: what has the new name in `names` (old -> new). Raises AttributeError."""
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(
        f"{module}.{name} is {names[name]} now; the old name works in this version only", DeprecationWarning, 3
    )
    return getattr(importlib.import_module(module), names[name])


def renamed_keyword(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the function takes the keyword `new` by its old name, too."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> T:
            if old in given and new not in given:  # both: the function refuses the old one
                what = f"the parameter {old} of {function.__name__}"
                warnings.warn(f"{what} is {new} now; the old name works in this version only", DeprecationWarning, 2)
                given[new] = given.pop(old)
            return function(*args, **given)

        return call

    return decorate
