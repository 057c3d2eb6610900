"""Load objects by path: `file.py:name` or `package.module:name`. Show errors of a user's code in one line."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import threading
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl._util.config_errors import check_file
from agentrl.errors import ConfigError, did_you_mean, one_line, with_remedy

_NOT_THE_USERS = tuple(
    {*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]), "<frozen"}
)

_importing = threading.RLock()


def search_current_folder() -> None:
    """Let imports find packages in the current folder, as `python -m` does."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)


def load_object(path: str, kind: type = object) -> Any:
    """The object at `file.py:name`, `package.module:name` or `package.module.name`.

    Raises ConfigError for any error of the import. If the module lacks the name, the message lists the module's
    subclasses of `kind`.
    """
    if "::" in path:
        raise ConfigError(f"{path!r} does not name an object; write {path.replace('::', ':')}")
    separator = ":" if ":" in path else "."
    module_path, _, name = path.rpartition(separator)
    if not module_path or not name or path.endswith(".py"):
        file = path.removesuffix(":") if path.endswith((".py", ".py:")) else "my_env.py"
        raise ConfigError(f"{path!r} does not name an object; write {file}:NAME or package.module:NAME")
    module = _load_file(Path(module_path)) if module_path.endswith(".py") else _load_module(module_path, path)
    if not hasattr(module, name):
        raise ConfigError(f"{module_path} has no {name!r}{_instead(module, name, kind)}")
    return getattr(module, name)


def _instead(module: ModuleType, name: str, kind: type) -> str:
    """The part of an error message that helps with a wrong name: a similar name, and the module's subclasses of
    `kind`."""
    subclasses = [n for n, v in vars(module).items() if _is_subclass(v, kind)]
    names = subclasses or [n for n in vars(module) if not n.startswith("_")]
    return did_you_mean(name, names, "; it has: {}" if subclasses else "")


def cause(exc: BaseException) -> str:
    """An exception in one line, as `file:line: Type: text`. The line is the innermost line of the user's code."""
    message = with_remedy(exc, one_line(exc))
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith("<frozen")]
    user_frames = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    if not (user_frames or frames):
        return message
    frame = (user_frames or frames)[-1]
    return f"{short(frame.filename)}:{frame.lineno}: {message}"


def not_the_users(file: str) -> bool:
    """Whether a file belongs to Python, to a package or to agentrl."""
    return file.startswith(_NOT_THE_USERS)


def definition(function: Callable[..., Any]) -> str | None:
    """`file:line` where the user defined a function. None for a function of a package, of Python or of agentrl."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None or not_the_users(code.co_filename):
        return None
    return f"{short(code.co_filename)}:{code.co_firstlineno}"


def own_frames(formatted: str) -> str:
    """The frames of a formatted traceback in the user's code."""
    frames = re.finditer(r'^  File "(?P<file>.+)", line \d+, in .*\n(?:    .*\n)*', formatted, re.MULTILINE)
    return "".join(frame.group() for frame in frames if not frame["file"].startswith(_NOT_THE_USERS))


def own_line(formatted: str) -> str:
    """`file:line`, the innermost line of the user's code in a formatted traceback; "" if there is none."""
    lines = re.findall(r'^  File "(.+)", line (\d+), in ', own_frames(formatted), re.MULTILINE)
    return f"{short(lines[-1][0])}:{lines[-1][1]}" if lines else ""


def _load_module(module_path: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_path)
    except ConfigError:
        raise
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module_path == exc.name or module_path.startswith(f"{exc.name}.")):
            raise ConfigError(f"{path}: importing {module_path} failed: {exc}; install what it needs") from exc
        raise ConfigError(f"{path}: no module {module_path!r}; install it, or put it on PYTHONPATH") from exc
    except (Exception, SystemExit) as exc:  # the import boundary: any code may run in there
        raise ConfigError(f"{path}: importing {module_path} failed: {_import_cause(exc)}") from exc


def _load_file(file: Path) -> ModuleType:
    """Import a file under a module name made of its path, so that two files called env.py do not clash, and pickling
    works."""
    check_file(file, f"give its path from here, {Path.cwd()}")
    name = f"agentrl_user_{file.stem}_{zlib.crc32(str(file.resolve()).encode()):08x}"
    with _importing:  # no thread may see a partly executed module
        return sys.modules[name] if name in sys.modules else _import_file(file, name)


def _import_file(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python file.py` does, so that imports of neighbouring files work
    try:
        spec.loader.exec_module(module)
    except BaseException as exc:
        del sys.modules[name]
        if isinstance(exc, ModuleNotFoundError):
            raise ConfigError(f"{file}: {exc}; install it, or put it on PYTHONPATH") from exc
        if isinstance(exc, ConfigError) or not isinstance(exc, Exception | SystemExit):
            raise
        raise ConfigError(_import_cause(exc)) from exc
    return module


def _import_cause(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError):
        return f"{short(exc.filename or '')}:{exc.lineno}: {exc.msg}"
    return cause(exc)


def short(file: str) -> str:
    """A file's path; relative to the current folder if the file is inside that folder."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def source_of(code: object | None) -> tuple[str, str]:
    """The path of the source file of a class or function, and a digest of the file; both empty if unknown."""
    try:
        file = inspect.getsourcefile(code) if code is not None else None  # type: ignore[arg-type]  # it raises TypeError
        data = Path(file).read_bytes() if file is not None else None
    except (OSError, TypeError):  # a class made by hand
        return "", ""
    return (short(file), hashlib.sha256(data).hexdigest()[:12]) if file is not None and data is not None else ("", "")


def _is_subclass(value: Any, kind: type) -> bool:
    return kind is not object and isinstance(value, type) and issubclass(value, kind) and value is not kind
