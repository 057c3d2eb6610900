"""The table of results: how it is made, and that outcomes.md shows what this suite tests."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slime.contract.table import BEGIN, END, Table, parse, render

HERE = Path(__file__).parent
OUTCOMES = HERE / "outcomes.md"


def outcome(path: str, host: str, kind: str, *reason: str) -> tuple[Any, Any]:
    """A test and its report, as pytest hands them over."""
    mark = pytest.mark.path(path).mark
    item = SimpleNamespace(get_closest_marker=lambda _: mark, callspec=SimpleNamespace(params={"host": host}))
    flags = {name: kind == name for name in ("passed", "failed", "skipped")}
    return item, SimpleNamespace(when="call", longrepr=("file", 1, *reason), **flags)


def test_the_worst_of_a_paths_tests_counts(tmp_path):
    table, file = Table(), tmp_path / "doc.md"
    table.name("slime", "slime abc")
    table.name("miles", "miles 1")
    for one in [
        outcome("sync", "slime", "passed"),
        outcome("eval", "slime", "failed"),
        outcome("eval", "slime", "passed"),
        outcome("sync", "miles", "passed"),
        outcome("async", "slime", "passed"),
        outcome("async", "miles", "skipped", "Skipped: the host has no async"),
    ]:
        table.note(*one)
    earlier = {"slime xyz": {"sync": "ok", "old": "ok"}}
    file.write_text(f"before\n{BEGIN}\n{render(['sync', 'old'], earlier)}{END}\nafter")
    table.write(file)
    text = file.read_text()
    assert (text.startswith("before\n"), text.endswith("\nafter")) == (True, True)
    assert parse(text) == {
        **earlier,
        "slime abc": {"sync": "ok", "eval": "FAILED", "async": "ok"},
        "miles 1": {"sync": "ok", "async": "the host has no async"},
    }


def marked_paths() -> set[str]:
    """The rows that the suite's source asks for. Names made of parameters count up to their colon."""
    found = set[str]()
    for file in HERE.glob("test_*.py"):
        if file == Path(__file__):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.path":
                name = node.args[0]
                text = name.values[0] if isinstance(name, ast.JoinedStr) else name
                assert isinstance(text, ast.Constant)
                found.add(text.value.partition(":")[0])
    return found


def test_the_documentation_shows_what_is_tested():
    columns = parse(OUTCOMES.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0])
    assert {label.split()[0] for label in columns} == {"slime", "miles"}
    for label, column in columns.items():
        assert {path.partition(":")[0] for path in column} == marked_paths(), label
        assert "FAILED" not in column.values(), label
