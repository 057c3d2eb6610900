"""Checks that the functions in the values of flags exist. Their modules are parsed, not imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from agentrl._util.findings import Finding, error, unchecked
from agentrl._util.loading import load_object
from agentrl.errors import ConfigError, did_you_mean
from agentrl.slime.check.setup import GENERATE, Setup

_ALIKE = 0.85
_GENERATE_FLAG = "--custom-generate-function-path"


def functions(setup: Setup) -> Iterator[Finding]:
    for flag, path in dict.fromkeys(setup.args.functions()):
        if flag == _GENERATE_FLAG and (path == GENERATE or is_misspelt(path)):
            continue  # the flag's rule reports the error
        if path.startswith("agentrl."):
            yield from _own(flag, path)
        else:
            yield from _foreign(flag, path, (*setup.command.path, *sys.path))


def is_misspelt(path: str) -> bool:
    """Whether the path is a misspelling of `agentrl.adapt`."""
    return path != GENERATE and (
        path.startswith("agentrl.") or bool(get_close_matches(path, [GENERATE], cutoff=_ALIKE))
    )


def _own(flag: str, path: str) -> Iterator[Finding]:
    try:
        load_object(path)
    except ConfigError as exc:
        yield error(f"{flag} {path}: {exc}")


def _foreign(flag: str, path: str, folders: Sequence[str]) -> Iterator[Finding]:
    module, _, name = path.rpartition(".")
    if not module:
        yield error(f"{flag} {path}: names no function; write package.module.function")
        return
    package, *inner = module.split(".")
    roots = _roots(package, folders)
    if not roots:
        yield unchecked(path, f"there is no module {package} here; is it on PYTHONPATH, or spelt wrongly?")
        return
    file = next(filter(None, (_file(root.joinpath(*inner)) for root in roots)), None)
    if file is None:
        if any(_file(root) for root in roots):
            yield error(f"{flag} {path}: {package} has no module {module}; correct the path")
        else:  # another folder with the package's name
            yield unchecked(path, f"there is no module {module} here; is it on PYTHONPATH, or spelt wrongly?")
    elif (names := _names(file)) is not None and name not in names:
        yield error(f"{flag} {path}: {file} defines no {name}{did_you_mean(name, names)}")


def _roots(package: str, folders: Sequence[str]) -> list[Path]:
    """The places where a package may be: a folder, or a file without its suffix."""
    roots = [Path(folder, package) for folder in folders]
    existing = [root for root in roots if root.is_dir() or _file(root)]
    spec = importlib.util.find_spec(package) if not any(map(_file, existing)) else None
    if spec and spec.origin:  # an editable install may be in another place
        origin = Path(spec.origin)
        existing.append(origin.parent if origin.name == "__init__.py" else origin.with_suffix(""))
    return existing


def _file(module: Path) -> Path | None:
    return next((f for f in (module / "__init__.py", module.with_name(f"{module.name}.py")) if f.is_file()), None)


def _names(file: Path) -> set[str] | None:
    """The names that a module defines. None if only an import of the module shows its names."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    names = [_names_of(node) for node in ast.walk(tree)]
    return None if None in names else set(chain.from_iterable(filter(None, names)))


def _names_of(node: ast.AST) -> set[str] | None:
    """The names that a statement defines. None if only an import of the module shows its names."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return None if name == "__getattr__" else {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            names = {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            return None if "*" in names else names
        case ast.Name(id=name, ctx=ast.Store()):
            return {name}
    return set()
