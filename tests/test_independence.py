"""Tests stand apart: from the inside of the product, and from one another.

`python -m tests.test_independence` lists each read of a private attribute of the product.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("agentrl", "envs/agentrl_envs", "sandbox/agentrl_sandbox")
LIMIT = 100
FOREIGN = {
    "_attn_implementation": "of transformers",
    "_replace": "of named tuples",
    "_server": "of aiohttp's sites",
    "_transport": "of asyncio's processes",
}
"""Names that others have, too: the product's own use is not told from theirs."""


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names() -> set[str]:
    """What the product's modules and objects hold under a private name."""
    names: set[str] = set()
    for _, tree in trees(*PRODUCT):
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
    return set(filter(is_private, names)).difference(FOREIGN)


def private_reads() -> list[str]:
    """`thing._name` in tests, where the product has the name. A test's own classes read it as `self._name`."""
    names = private_names()
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names and not is_own(node.value)
    ]


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def test_few_private_attributes_are_read():
    assert len(reads := private_reads()) <= LIMIT, "\n".join(reads)


def test_no_test_module_imports_another():
    """What several share is a module of its own, so that each can be moved and played alone."""
    imports = [
        f"{path}:{node.lineno}"
        for path, tree in trees("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
        for name in [node.module.rpartition(".")[2], *(alias.name for alias in node.names)]
        if name.startswith("test_")
    ]
    assert imports == []


def test_private_attributes_are_seen():
    """Else the limit would hold nothing."""
    assert {"_memory", "_tokenizer"} <= private_names()
    assert not is_own(ast.parse("renderer._tokenizer", mode="eval").body.value)
    assert is_own(ast.parse("self._tokenizer", mode="eval").body.value)


if __name__ == "__main__":
    print("\n".join(private_reads()))
