"""Run `agentrl ARGUMENTS` as on a Mac, as far as Linux can play one: `python as_on_a_mac.py ARGUMENTS`.

Modules, functions and folders that only Linux has are hidden, and `sys.platform` is "darwin". fcntl, resource and pwd
exist on both systems. A use of a hidden part is an error of its usual kind: ModuleNotFoundError, AttributeError,
FileNotFoundError.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import os
import select
import sys
import sysconfig
from contextlib import suppress
from importlib import import_module
from types import ModuleType

FOLDERS = ("/proc", "/sys", "/dev/shm", "/etc/machine-id")
MODULES = {"spwd", "ossaudiodev", "_crypt", "triton", "bitsandbytes"}
FUNCTIONS = (
    *(name for name in dir(os) if name.startswith(("sched_", "eventfd", "posix_fadvise", "posix_fallocate", "SCHED_"))),
    *("memfd_create", "pidfd_open", "getrandom", "splice", "copy_file_range", "setns", "unshare", "fdatasync"),
    *("prlimit", "getresuid", "setresuid", "O_TMPFILE", "O_PATH", "O_DIRECT", "PRIO_DARWIN_BG"),
)
SYMBOLS = ("renameat2", "prctl", "sched_getaffinity", "memfd_create", "malloc_trim", "gnu_get_libc_version")
used: list[str] = []
"""The hidden parts that were asked for, in order."""


def is_hidden(path: object) -> bool:
    name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return any(name == folder or name.startswith(f"{folder}/") for folder in FOLDERS)


def by_psutil() -> bool:
    """psutil has other code for each system, which cannot be exchanged: its part for Linux stays."""
    return any(sys._getframe(depth).f_globals.get("__name__", "").startswith("psutil") for depth in (2, 3))


class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r} (on a Mac)", name=fullname)


def audit(event: str, args: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and args and is_hidden(args[0]) and not by_psutil():
        used.append(f"{event} {args[0]!r}")
        raise FileNotFoundError(2, "No such file or directory (on a Mac)", args[0])


def without_folders(function):
    def call(path, *args, **kwargs):
        if is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory (on a Mac)", path)
        return function(path, *args, **kwargs)

    return call


class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in SYMBOLS:
            raise AttributeError(f"{name}: symbol not found (on a Mac)")
        return super().__getattr__(name)


def become_a_mac() -> None:
    for name in FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)
    for name in [name for name in dir(select) if name.startswith(("epoll", "EPOLL"))]:
        delattr(select, name)
    for name in ("stat", "lstat", "readlink", "access"):
        setattr(os, name, without_folders(getattr(os, name)))
    scproxy = ModuleType("_scproxy")  # of macOS' urllib
    scproxy._get_proxy_settings = scproxy._get_proxies = dict
    sys.modules["_scproxy"] = scproxy
    ctypes.CDLL = Library
    sys.meta_path.insert(0, Hidden())
    sys.addaudithook(audit)
    with suppress(ModuleNotFoundError):
        import_module("psutil")
    sysconfig.get_config_vars()  # named by the platform of this Python, and cached
    sys.platform = "darwin"


if __name__ == "__main__":
    become_a_mac()
    from agentrl.cli import main

    sys.argv = ["agentrl", *sys.argv[1:]]
    try:
        main()
    finally:
        print("hidden parts that were asked for:", *(used or ["none"]), sep="\n    ", file=sys.stderr)
