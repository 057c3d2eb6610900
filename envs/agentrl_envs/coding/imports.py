"""The modules that a Python text imports. The text is parsed, not run."""

from __future__ import annotations

import ast


def imported(node: ast.AST) -> set[str]:
    """The modules that a statement imports, by their first names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    else:
        return set()
    return {name.partition(".")[0] for name in names}


def imports_of(text: str) -> set[str]:
    """The modules that any statement of a text imports, by their first names. Empty for a text that is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return set().union(*map(imported, ast.walk(tree)))
