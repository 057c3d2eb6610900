"""Read the tests in a task's label, in the formats of published data sets, and the code in a model's answer."""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentrl.errors import ConfigError
from agentrl.types import JSON
from agentrl_envs.coding.imports import imported

MODULE = "solution"
"""The name of the module with the model's code. Tests write `from solution import add`."""
FILE = f"{MODULE}.py"

_TESTS = ".agentrl_tests"
_BEFORE = ("test_imports", "test_setup_code")
"""Keys of MBPP's rows. Their values are code that runs before the asserts."""
_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__"}
_FENCE = re.compile(r"^([ \t]*)(?:(?:[-*+]|\d+[.)])([ \t]+))?(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)
"""Indentation, the mark of a list item with its blanks, the fence, and the rest of the line."""
_PYTHON = re.compile(r"\{?\.?py(?:thon)?[\d.]*(?:[:,}].*)?", re.IGNORECASE)
_DEEPER = 3
"""The most spaces by which the closing fence may be indented more than the opening fence."""

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests to run on the code in FILE."""

    job: Mapping[str, Any]
    """The tests as a job for `FunctionTestGrader`."""
    files: Mapping[str, str] = field(default_factory=dict)


def code_block(text: str) -> str | None:
    """The last fenced block of Python. None without a block, or if the last fence stays open.

    A block without a language counts if no block before it names Python, or if the block defines a function or a class.
    Otherwise the block is sample output.
    """
    block, named = None, False
    opened: re.Match[str] | None = None
    text = text.replace("\r\n", "\n")
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif _closes(fence, opened):
            language = (opened[4].split() or [""])[0]
            code = _dedented(text[opened.end() + 1 : fence.start()], len(opened[1].expandtabs()))
            if _PYTHON.fullmatch(language):
                block, named = code, True
            elif not language and (not named or _defines(code)):
                block = code
            opened = None
    return None if opened else block


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    """Whether a fence ends the block. A deeper fence is text of the block, in a docstring for example."""
    before = opened.string[opened.start() : opened.start(3)]
    near = len(fence[1].expandtabs()) <= len(before.expandtabs()) + _DEEPER
    return near and fence[2] is None and fence[3].startswith(opened[3]) and not fence[4].strip()


def _dedented(code: str, indent: int) -> str:
    """A block's code without the indentation of the fence, and then without the common indentation of the lines."""
    lines = (line.expandtabs() if indent else line for line in code.splitlines(keepends=True))
    return textwrap.dedent("".join(line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in lines))


def _defines(code: str) -> bool:
    """Whether a text is Python that defines a function or a class."""
    try:
        return any(isinstance(node, _Function | ast.ClassDef) for node in ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def suite(label: JSON) -> Suite:
    """The tests of a label. Raises ConfigError, which names the label, for a label without runnable tests."""
    try:
        return _suite(_unwrapped(label))
    except _NoTestsError as exc:
        raise ConfigError(f"the label {label!r:.200} holds no tests that can be run: {exc}") from None


class _NoTestsError(Exception):
    pass


def _unwrapped(label: JSON) -> JSON:
    for key in ("reward_model", "ground_truth"):
        if isinstance(label, Mapping) and key in label:
            label = label[key]
    if isinstance(label, str) and label.lstrip()[:1] in ("{", "["):
        try:
            label = json.loads(label)
        except (ValueError, RecursionError):  # Python may begin so, too
            return label
    return label


def _suite(label: JSON) -> Suite:
    if isinstance(label, str):
        return _of_text(label)
    if isinstance(label, Mapping):
        return _of_mapping(label)
    return _of_text(_lines(label, "it"))


def _of_mapping(label: Mapping[str, JSON]) -> Suite:
    if label.get("fn_name"):
        raise _NoTestsError("inputs of a function (fn_name) are not supported; write them as asserts")
    if "inputs" in label or "outputs" in label:
        return _of_streams(label.get("inputs"), label.get("outputs"))
    if "test_list" in label:
        before = [_lines(label[key], key) for key in _BEFORE if label.get(key) is not None]
        return _of_text("\n".join([*before, _lines(label["test_list"], "test_list")]))
    if "test" not in label:
        raise _NoTestsError("write its tests under test, test_list, or inputs and outputs")
    text, name = label["test"], label.get("entry_point")
    if not isinstance(text, str) or not (name is None or (isinstance(name, str) and name.isidentifier())):
        raise _NoTestsError("test must be a text, and entry_point the name of a function")
    return _of_text(text) if name is None else _of_function(text, name, label.get("prompt") or "")


def _lines(value: JSON, name: str) -> str:
    """A text. A list of texts is joined to a single text."""
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, Sequence) or not all(isinstance(line, str) for line in lines):
        raise _NoTestsError(f"{name} is neither a text nor a list of texts")
    return "\n".join(lines)


def _of_streams(inputs: JSON, outputs: JSON) -> Suite:
    texts, expected = _streams(inputs, "inputs"), _streams(outputs, "outputs")
    if not texts or len(texts) != len(expected):
        raise _NoTestsError(
            f"there are {len(texts)} inputs and {len(expected)} outputs; write one output for each input"
        )
    return Suite(
        {"folder": ".", "program": FILE, "streams": [list(pair) for pair in zip(texts, expected, strict=True)]}
    )


def _streams(value: JSON, name: str) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _NoTestsError(f"{name} is not a list of texts")
    return [_lines(text, f"one of the {name}") for text in value]


def _of_function(text: str, name: str, prompt: JSON) -> Suite:
    """The suite of tests in HumanEval's format. Helper functions of the tests come from the task, not from the
    model."""
    prompt, tests = str(prompt), _parsed(text)
    checks = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tests.body)
    defined = _defined(prompt) if checks and _parsed(prompt).body else set()
    unknown = set() if _has_star(tests) else _unknown(text) - {name} - defined
    if unknown:
        raise _NoTestsError(f"test uses {', '.join(sorted(unknown))}, which it does not define; add the task's prompt")
    if not checks:
        return _of_names(tests, text, [name])
    _need_asserts(tests)
    return Suite({"folder": ".", "module": MODULE, "prompt": prompt, "test": text, "entry_point": name})


def _of_text(text: str) -> Suite:
    tests = _parsed(text)
    names = sorted(_unknown(text))
    if not names and not any(MODULE in imported(node) for node in ast.walk(tests)):
        names = sorted({_called(node) for node in ast.walk(tests)} & _BUILTIN)
        if len(names) != 1:
            raise _NoTestsError("it does not name the function that it tests; call one, or name it as entry_point")
    return _of_names(tests, text, names)


def _of_names(tests: ast.Module, text: str, names: list[str]) -> Suite:
    if any(map(_needs_pytest, tests.body)):
        return _of_pytest(tests, text, names)
    _need_asserts(tests)
    if not any(map(_runs, tests.body)):
        raise _NoTestsError("it runs none of its asserts; name the function that `check` gets as entry_point")
    return Suite({"folder": ".", "module": MODULE, "names": names, "test": text})


def _runs(node: ast.stmt) -> bool:
    """Whether running a statement of the tests may run an assert."""
    if isinstance(node, ast.FunctionDef):
        return node.name == "test" or node.name.startswith("test_")
    return not isinstance(node, ast.ClassDef) and any(
        isinstance(child, ast.Assert | ast.Call) for child in ast.walk(node)
    )


def _of_pytest(tests: ast.Module, text: str, names: list[str]) -> Suite:
    if any(isinstance(node, ast.Assert) for node in tests.body):
        raise _NoTestsError("next to pytest's tests, asserts must be in test functions")
    if any(isinstance(node, ast.AsyncFunctionDef) for node in tests.body):
        raise _NoTestsError("it has an async function, which pytest alone does not run")
    lines = text.splitlines()
    if names:
        ends = [node.end_lineno or 0 for node in tests.body if "__future__" in imported(node)]
        lines.insert(max(ends, default=0), f"from {MODULE} import {', '.join(names)}")
    return Suite({"folder": ".", "tests": _TESTS, "modules": [MODULE]}, {f"{_TESTS}/test_it.py": "\n".join(lines)})


def _needs_pytest(node: ast.stmt) -> bool:
    """Whether a statement of the tests needs pytest."""
    if isinstance(node, ast.ClassDef):
        return any(isinstance(child, _Function) and child.name.startswith("test") for child in node.body)
    if isinstance(node, _Function) and node.name.startswith("test_"):
        arguments = node.args
        return bool(node.decorator_list or arguments.args or arguments.kwonlyargs) or not isinstance(
            node, ast.FunctionDef
        )
    return bool({"pytest", "unittest"} & imported(node))


def _need_asserts(tests: ast.Module) -> None:
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tests)):
        raise _NoTestsError("it asserts nothing")


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise _NoTestsError(f"it is not valid Python: {exc}") from None


def _unknown(text: str) -> set[str]:
    """The names that a source text uses but does not define."""
    used = {
        symbol.get_name()
        for table in _tables(symtable.symtable(text, "tests", "exec"))
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
    }
    return used - _defined(text) - _BUILTIN


def _defined(text: str) -> set[str]:
    """The names that a source text defines at module level."""
    return {
        symbol.get_name()
        for table in _tables(symtable.symtable(text, "tests", "exec"))
        for symbol in table.get_symbols()
        if (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())
        and (table.get_type() == "module" or symbol.is_declared_global())
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _has_star(tests: ast.Module) -> bool:
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tests.body)


def _called(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
