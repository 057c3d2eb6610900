"""Whether only this process's user can have written a file. Unpickling a file can run code.

A network file system may show another owner or mode than the writer's. With root_squash, the files of root belong to
nobody. Some mounts show mode 0777 for every file. So the check compares the file with a new file in the same folder.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from agentrl.errors import ConfigError

log = logging.getLogger("agentrl")

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_own(path: Path, name: str) -> None:
    """Raises ConfigError if other users can have written the file, or can write to the folder. `name` begins the
    message.

    Raises OSError if the file is missing.
    """
    check_owner(path, name)
    if not path.stat().st_mode & _OTHERS:
        return
    new_file = _new_file_beside(path)
    if new_file is None or not new_file.st_mode & _OTHERS:
        raise ConfigError(
            f"{name}: others can write to it, and files read from there can run code; run `chmod go-w {path}`, "
            "or name a folder of your own"
        )
    _warn_of_modes(path)


def check_owner(path: Path, name: str) -> None:
    """Raises ConfigError if another user owns the file or the folder. `name` and OSError are as in `check_own`."""
    owner = path.stat().st_uid
    if owner == os.getuid():
        return
    new_file = _new_file_beside(path)
    expected = os.getuid() if new_file is None else new_file.st_uid
    if owner != expected:
        raise ConfigError(
            f"{name}: it belongs to another user (uid {owner}, here {expected}), and files read from there can "
            "run code; name a folder of your own, or copy it into one"
        )


def _new_file_beside(path: Path) -> os.stat_result | None:
    """The stat of a new file in the same folder, which is deleted again. None if no file can be created there."""
    folder = path if path.is_dir() else path.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno())
    except OSError:
        return None


@cache
def _warn_of_modes(path: Path) -> None:
    log.warning(
        "%s: its file system shows every file as writable for others, so agentrl cannot check who writes there; other "
        "users may run code here",
        path,
    )
