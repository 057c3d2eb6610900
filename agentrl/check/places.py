"""Places in code: the code of the Env's author, and the lines that a finding names."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from agentrl._util.findings import Place
from agentrl._util.loading import not_the_users
from agentrl.env.env import Env

_SHIPPED = ("agentrl", "agentrl_envs", "agentrl_sandbox")
_ENDS = ("asyncio/events.py", "asyncio/base_events.py", "threading.py", "agentrl/_util/concurrency.py")
"""Ends of file paths. A frame of these files belongs to the event loop or a thread: no caller above it is searched."""
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?P<package>[^/]+)")
_END_NAMES = ("_run", "_run_once", "run_forever", "run", "_bootstrap_inner", "_work")


class AuthorCode:
    """The code of an Env's author: the files of the Env's classes, and the neighbouring files that these import."""

    def __init__(self, cls: type[Env]) -> None:
        self.cls = cls
        bases = [base for base in cls.__mro__ if base is not object and not _is_agentrls(base.__module__)]
        self.classes: list[type] = bases or [cls]
        """The classes that the author wrote, the Env's class first."""
        homes = {_home(base) for base in self.classes}
        self._homes = tuple(home for home in homes if home)

    def has(self, file: str) -> bool:
        if file.startswith("<"):
            return False
        if file.startswith(self._homes):
            return not _is_installed(file) or any(_is_installed(home) for home in self._homes)
        installed = not_the_users(file) or _is_installed(file)
        return not installed and not any(f"/{name}/" in file for name in _SHIPPED)

    def of_frame(self, frame: FrameType | None) -> Place | None:
        """The innermost line of the Env's code that led to a frame. None if the Env is not running."""
        while frame is not None:
            file = frame.f_code.co_filename
            if self.has(file):
                return Place(file, frame.f_lineno)
            if file.endswith(_ENDS) and frame.f_code.co_name in _END_NAMES:
                return None
            frame = frame.f_back
        return None

    def here(self) -> Place | None:
        """The innermost line of the Env's code that led to this call. None if the Env is not running."""
        return self.of_frame(sys._getframe(1))

    def of_traceback(self, traceback: TracebackType | None) -> Place | None:
        """The innermost line of the Env's own code in an exception's traceback, or None."""
        place = None
        while traceback is not None:
            if self.has(traceback.tb_frame.f_code.co_filename):
                place = Place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
            traceback = traceback.tb_next
        return place

    def of_error(self, exc: BaseException) -> Place | None:
        """Like `of_traceback`, for an error that may be a group of errors or have a cause."""
        if (line := self.of_traceback(exc.__traceback__)) is not None:
            return line
        inner = [*getattr(exc, "exceptions", ()), exc.__cause__, exc.__context__]
        return next((place for error in inner if error is not None and (place := self.of_error(error))), None)

    def of_text(self, traceback: str) -> Place | None:
        """Like `of_traceback`, for the text of a traceback."""
        lines = re.findall(r'^\s*File "(.+)", line (\d+)', traceback, re.MULTILINE)
        places = [Place(file, int(line)) for file, line in lines if self.has(file)]
        return places[-1] if places else None

    def of_awaited(self, coroutine: Any) -> Place | None:
        """The innermost line of the Env's code at which a coroutine is suspended, or None."""
        place = None
        while coroutine is not None:
            frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
            frame = frame or getattr(coroutine, "ag_frame", None)
            if frame is not None and self.has(frame.f_code.co_filename):
                place = Place(frame.f_code.co_filename, frame.f_lineno)
            following = (getattr(coroutine, name, None) for name in ("cr_await", "ag_await", "gi_yieldfrom"))
            counted = frame.f_locals.get("counted_coroutine") if frame is not None else None
            coroutine = counted or next((inner for inner in following if inner is not None), None)
        return place

    # Lines of the source

    def of_member(self, *names: str) -> Place:
        """The line that defines the first of these members that the author wrote; else the class definition's line."""
        for name in names:
            for base in self.classes:
                if name in vars(base) and (place := _definition(vars(base)[name])) is not None:
                    return place
                if (place := self._assignment(base, name)) is not None:
                    return place
        return _line_of(self.cls)

    def of_global(self, name: str) -> Place | None:
        """The line that assigns a module's global. None if the class has a member of that name."""
        if self.wrote(name):
            return None
        for module in self.modules:
            for node in ast.parse(Path(module.__file__ or "").read_text()).body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
                    return Place(str(module.__file__), node.lineno)
        return None

    def wrote(self, name: str) -> bool:
        """Whether the author wrote a member of that name."""
        return any(name in vars(base) for base in self.classes)

    def _assignment(self, base: type, name: str) -> Place | None:
        for node in self._tree(base).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
                return Place(inspect.getsourcefile(base) or "?", node.lineno)
        return None

    @staticmethod
    def _tree(base: type) -> ast.ClassDef:
        """The syntax tree of the class, from the class's file."""
        try:
            with Path(inspect.getsourcefile(base) or "?").open() as file:
                tree = ast.parse(file.read())
        except (OSError, TypeError, SyntaxError):
            return ast.parse("class _: ...").body[0]  # type: ignore[return-value]
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == base.__name__]
        return classes[0] if classes else ast.parse("class _: ...").body[0]  # type: ignore[return-value]

    @cached_property
    def modules(self) -> list[ModuleType]:
        """The modules of the author's classes, and the neighbouring modules that these import."""
        first = [sys.modules[base.__module__] for base in self.classes if base.__module__ in sys.modules]
        names = {getattr(value, "__module__", None) for module in first for value in list(vars(module).values())}
        near = [sys.modules[name] for name in sorted(filter(None, names)) if name in sys.modules]
        near += [value for module in first for value in list(vars(module).values()) if isinstance(value, ModuleType)]
        return [module for module in dict.fromkeys([*first, *near]) if self._is_module(module)]

    def _is_module(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and file.startswith(self._homes) and self.has(file)

    def calls(self, accepts: Callable[[str], bool]) -> Iterator[tuple[Place, str]]:
        """The calls in the files of the author's classes, with the names as written: `time.sleep`."""
        for file in dict.fromkeys(filter(None, map(_source, self.classes))):
            for node in ast.walk(ast.parse(Path(file).read_text())):
                if isinstance(node, ast.Call) and accepts(name := dotted(node.func)):
                    yield Place(file, node.lineno), name

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """The methods of the author's classes, with their files."""
        for base in self.classes:
            for node in self._tree(base).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield _source(base) or "?", node


def dotted(node: ast.AST) -> str:
    """`a.b.c` as written; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def of_function(function: Any) -> Place:
    """The line where a function is defined."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(inner, "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code is not None else Place("?", 0)


def _definition(member: Any) -> Place | None:
    inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    inner = inspect.unwrap(inner) if callable(inner) else inner
    code = getattr(inner, "__code__", None)
    if code is None:
        return None
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return Place(code.co_filename, code.co_firstlineno)
    offset = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "async def "))), 0)
    return Place(code.co_filename, first + offset)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets: Iterable[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _line_of(cls: type) -> Place:
    try:
        return Place(inspect.getsourcefile(cls) or "?", inspect.getsourcelines(cls)[1])
    except (OSError, TypeError):
        return Place(cls.__module__, 0)


def _source(cls: type) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except TypeError:
        return None


def _home(cls: type) -> str:
    """The folder of a class's package, or of the class's file."""
    root = sys.modules.get(cls.__module__.partition(".")[0])
    file = getattr(root, "__file__", None) or _source(cls)
    return f"{os.path.dirname(os.path.abspath(file))}/" if file else ""


def _is_agentrls(module: str) -> bool:
    return module == "agentrl" or module.startswith("agentrl.")


def library_of(author: AuthorCode, frame: FrameType | None) -> str | None:
    """The installed package whose code the Env has called, and which runs now. None if the Env's line runs.

    The standard library does not count: a call such as `time.sleep` belongs to the Env's line.
    """
    while frame is not None and not author.has(frame.f_code.co_filename):
        if match := _INSTALLED.search(frame.f_code.co_filename):
            return match["package"].removesuffix(".py")
        frame = frame.f_back
    return None


def _is_installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file
