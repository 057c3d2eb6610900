"""Shared by the adapters of suites: import a suite, look up names, isolate side effects."""

from __future__ import annotations

import importlib
import itertools
import logging
import random
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

from agentrl import ConfigError, Task
from agentrl.errors import did_you_mean

EVAL_SEEDS = 1 << 31
"""The number before the first held-out seed. Training seeds begin at 1. The suites take seeds below 2**32."""
_GLOBALS = threading.RLock()
"""Guards the state of the whole process: random states, stdout, logging."""


def suite(module: str, package: str) -> ModuleType:
    """A suite's module. Raises ConfigError with the pip command if the suite is not installed.

    Some suites configure logging for the whole program on import; the change is undone.
    """
    root = logging.getLogger()
    with _GLOBALS, _print_to_stderr():
        handlers, level = root.handlers[:], root.level
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as exc:
            raise ConfigError(f"{module}: {exc}; run: pip install {package}") from exc
        finally:
            root.handlers[:], root.level = handlers, level


def refuse_unknown(kind: str, name: str, names: Iterable[str]) -> None:
    """Raises ConfigError, with similar names, unless `name` is known."""
    names = list(names)
    if name in names:
        return
    few = f"; of {len(names)} there are: {', '.join(names[:5])}{', ...' if names[5:] else ''}"
    raise ConfigError(f"there is no {kind} {name!r}{did_you_mean(name, names, few, most=3)}")


def names_of(value: str | Sequence[str]) -> list[str]:
    """A name, or several, as a list. Raises ConfigError without a name."""
    names = [value] if isinstance(value, str) else list(value)
    if not names:
        raise ConfigError("env_config names nothing to play; give one name, or a list of names")
    return names


def seeded(names: Sequence[str], split: Literal["train", "eval"]) -> Iterator[Task]:
    """Endless tasks with increasing seeds, which use the names in turn. The first seed is 1, or 2**31 + 1 for held-out
    tasks."""
    first = 1 if split == "train" else EVAL_SEEDS + 1
    for seed, name in zip(itertools.count(first), itertools.cycle(names), strict=False):
        yield Task(prompt=name, metadata={"name": name}, seed=seed)


class OwnRandom:
    """The global random states of an episode: `random`, and numpy's if numpy is imported.

    Inside `with`, the states are as this episode left them, and stdout is stderr for this thread. Episodes enter one at
    a time. So an episode draws the same random numbers beside other episodes as alone.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed % (1 << 32)
        self._inner: tuple[Any, Any] | None = None
        self._outer: tuple[Any, Any] = (None, None)
        self._stdout: Any = None

    def __enter__(self) -> None:
        _GLOBALS.acquire()
        self._outer = _states()
        if self._inner is None:
            random.seed(self._seed)
            _numpy_do("seed", self._seed)
        else:
            _set(self._inner)
        self._stdout = _print_to_stderr()
        self._stdout.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._stdout.__exit__(None, None, None)
        self._inner = _states()
        _set(self._outer)
        _GLOBALS.release()


def _states() -> tuple[Any, Any]:
    return random.getstate(), _numpy_do("get_state")


def _set(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        _numpy_do("set_state", states[1])


def _numpy_do(name: str, *args: Any) -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy.random, name)(*args) if numpy is not None else None


class _Printed:
    """Replaces stdout while a suite runs. Output of the suite's thread goes to stderr, so it cannot spoil a table or
    JSON."""

    def __init__(self, stdout: Any) -> None:
        self._stdout, self._thread = stdout, threading.get_ident()

    def write(self, text: str) -> int:
        is_suite = threading.get_ident() == self._thread
        return int((sys.stderr if is_suite else self._stdout).write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


@contextmanager
def _print_to_stderr() -> Iterator[None]:
    before = sys.stdout
    now = sys.stdout = _Printed(before)
    try:
        yield
    finally:
        if sys.stdout is now:
            sys.stdout = before
