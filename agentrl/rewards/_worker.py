"""The program of a process for graders that may block or never return. `workers.py` starts and ends the process.

    parent: {"function": path, "args": [...], "seconds": s}    worker: {"ready": true}, once the function is imported
                                                               worker: {"result": ...} or {"error": ..., "world": ...}

The script imports no package of agentrl, so the process starts in a tenth of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

MEMORY = 8 * 2**30
"""The limit of the process's address space in bytes. Without a limit, `9^{9^{9^9}}` would take all the memory of the
machine."""
_GRACE_S = 2.0


def serve(connection: Connection, parent: int) -> None:
    """Answer requests in order, until the parent process is gone."""
    _bound_memory()
    of_parent = _load(f"{Path(__file__).parents[1] / '_util' / 'child.py'}:of_parent")
    with suppress(OSError):
        for request in of_parent(connection, parent):
            connection.send_bytes(json.dumps(_answer(json.loads(request), connection)).encode())


def _answer(request: Mapping[str, Any], connection: Connection) -> dict[str, Any]:
    try:
        function = _load(request["function"])
        connection.send_bytes(b'{"ready": true}')
        # If the parent was killed, only the kernel can end a function that never returns, even inside C code.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + _GRACE_S)
        try:
            return {"result": json.loads(json.dumps(function(*request["args"])))}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - the boundary of foreign graders: the parent reports it
        world = isinstance(exc, MemoryError) or _is_the_worlds()(exc)
        words = " ".join(str(exc).split())[:1000]
        return {"error": f"{type(exc).__name__}: {words}" if words else type(exc).__name__, "world": world}


@cache
def _is_the_worlds() -> Callable[[BaseException], bool]:
    """The function that tells whether the infrastructure caused an error. The function is loaded from a file, because
    the import of agentrl would take longer than a grade."""
    return _load(f"{Path(__file__).parents[1] / 'blame.py'}:is_the_worlds")


@cache
def _load(path: str) -> Callable[..., Any]:
    """The function at `file.py:name`, `folder/:name` (a package) or `package.module:name`."""
    place, _, name = path.rpartition(":")
    if place.endswith("/"):
        return getattr(_import(f"agentrl_grader_{Path(place).name}", f"{place}__init__.py", [place]), name)  # type: ignore[no-any-return]
    if place.endswith(".py"):
        return getattr(_import("agentrl_grader_file", place), name)  # type: ignore[no-any-return]
    return getattr(importlib.import_module(place), name)  # type: ignore[no-any-return]


def _import(name: str, file: str, folders: list[str] | None = None) -> ModuleType:
    """The module in a file, under a private name. `folders`: the search path of a package's submodules."""
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if folders:
        sys.modules[name] = module  # its modules import each other by this name
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as exc:
        raise ImportError(f"no such file: {file}") from exc
    return module


def _bound_memory() -> None:
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    os.nice(5)
    serve(Connection(int(sys.argv[2])), int(sys.argv[1]))
