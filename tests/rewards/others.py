"""The test cases of others, read from their source: slime's (SLIME_SRC) and math-verify's (MATH_VERIFY_SRC).

math-verify's tests are in its source distribution: `pip download --no-deps --no-binary :all: math-verify==0.9.0`.
Nothing of them is kept here.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

REQUIRED = os.environ.get("AGENTRL_REQUIRE", "").split(",")


def source(variable: str, name: str) -> Path:
    """The folder that the variable names. Skips the test, or fails it if AGENTRL_REQUIRE names it."""
    folder = os.environ.get(variable)
    if folder and Path(folder).is_dir():
        return Path(folder)
    return absent(f"{variable} does not name the root of {name}'s source", name)


def need(module: str, name: str) -> None:
    """Skips or fails the test if the module, which `name` imports, is absent."""
    if importlib.util.find_spec(module) is None:
        absent(f"{name} needs {module}", name)


def absent(why: str, name: str) -> NoReturn:
    if name in REQUIRED:
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def load_file(file: Path) -> ModuleType:
    name = f"others_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def calls_of(module: ModuleType, grader: str) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    """Play a module's tests, and note each call of one grader: arguments, keyword arguments, result."""
    noted: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
    original: Callable[..., Any] = getattr(module, grader)

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        noted.append((args, kwargs, result))
        return result

    setattr(module, grader, noting)
    for name, test in vars(module).copy().items():
        if name.startswith("test_"):
            for values in _parameters(test):
                test(**values)
    return noted


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    if not marks:
        yield {}
    for mark in marks:  # slime's tests have one at most
        names = mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else mark.args[0]
        for row in mark.args[1]:
            yield dict(zip(names, row if len(names) > 1 else (row,), strict=True))


def rows(file: Path) -> list[tuple[str, str, bool]]:
    """(right answer, answer, whether they are the same) of each parametrised row of a test file of math-verify's.

    Rows that need a setting of their own (precision, strictness) are left out.
    """
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "parametrize":
            try:
                names, values = (ast.literal_eval(argument) for argument in node.args[:2])
            except ValueError:
                continue
            if str(names).replace(" ", "") in ("gold,pred,expected", "gold,pred,result"):
                found += [(gold, pred, bool(same)) for gold, pred, same in values]
    return found
