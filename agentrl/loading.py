"""Objects by path: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError


def load_object(path: str, kind: type = object) -> Any:
    """The object at `file.py:name`, `package.module:name` or `package.module.name`.

    Raises ConfigError; where the module has no such name, it lists the subclasses of `kind` that are there.
    """
    separator = ":" if ":" in path else "."
    module_path, _, name = path.rpartition(separator)
    if not module_path or not name or path.endswith(".py"):
        file = path.removesuffix(":") if path.endswith((".py", ".py:")) else "my_env.py"
        raise ConfigError(f"{path!r} names no object; write {file}:NAME or package.module:NAME")
    module = _load_file(Path(module_path)) if module_path.endswith(".py") else _load_module(module_path, path)
    if not hasattr(module, name):
        known = ", ".join(n for n, v in vars(module).items() if _is_subclass(v, kind))
        raise ConfigError(f"{module_path} has no {name!r}" + (f"; it has: {known}" if known else ""))
    return getattr(module, name)


def _load_module(module_path: str, path: str) -> Any:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module_path == exc.name or module_path.startswith(f"{exc.name}.")):
            raise ConfigError(f"{path}: importing {module_path} failed: {exc}; install what it needs") from exc
        raise ConfigError(f"{path}: there is no module {module_path!r}; is it installed, or on PYTHONPATH?") from exc


def _load_file(file: Path) -> Any:
    """Import a file under a name made of its path, so that two files called env.py do not meet, and pickling works."""
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; give its path from here, {Path.cwd()}")
    name = f"agentrl_user_{file.stem}_{zlib.crc32(str(file.resolve()).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python file.py` would, so that its neighbours import
    try:
        spec.loader.exec_module(module)
    except BaseException as exc:
        del sys.modules[name]
        if isinstance(exc, SyntaxError):
            raise ConfigError(f"{exc.filename}:{exc.lineno}: {exc.msg}") from exc
        if isinstance(exc, ModuleNotFoundError):
            raise ConfigError(f"{file}: {exc}; install it, or put it on PYTHONPATH") from exc
        raise
    return module


def _is_subclass(found: Any, kind: type) -> bool:
    return kind is not object and isinstance(found, type) and issubclass(found, kind) and found is not kind
