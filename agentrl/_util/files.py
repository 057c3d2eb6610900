"""Write files and folders whole or not at all, even if the process is killed or the power fails."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl._util.file_lock import try_lock, unlock
from agentrl.errors import ConfigError

log = logging.getLogger("agentrl")

_FULL_BYTES = 1 << 20
"""If a write fails and the disk has fewer free bytes, the disk counts as full."""
_MANIFEST = "files.json"
"""A file in each folder of `write_folder`. It has `about`, and the size and checksum of every file."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def write_atomically(file: Path, text: str) -> None:
    """Replace the content of a file whole or not at all. At a symbolic link, the target is written. A device or a pipe
    is written directly."""
    if is_special(file):
        file.write_text(text, encoding="utf-8")
        return
    file = Path(os.path.realpath(file))
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        if file.exists():
            shutil.copymode(file, temporary)
        sync(temporary)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(file.parent)


def append_line(file: Path, line: str) -> None:
    """Append a line whole or not at all. The line survives the end of the process, but not of the machine."""
    remaining = f"{line}\n".encode()
    with file.open("ab", buffering=0) as opened:
        size = opened.seek(0, os.SEEK_END)
        try:
            while remaining:
                remaining = remaining[opened.write(remaining) :]
        except OSError:
            opened.truncate(size)
            raise


def is_special(file: Path) -> bool:
    """Whether a path names a device, a pipe or a similar file, which holds no data and must not be replaced."""
    return file.exists() and not (file.is_file() or file.is_dir())


@contextmanager
def only_writer(file: Path | None) -> Iterator[None]:
    """Lock out other commands that write to the same file. Raises ConfigError if another command runs.

    The lock is on a separate file, because the file itself is replaced.
    """
    if file is None or is_special(file):
        yield
        return
    target = Path(os.path.realpath(file))
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    if (descriptor := try_lock(lock)) is None:
        raise ConfigError(f"{file}: another command is writing to it; wait for its end, or name another")
    try:
        yield
    finally:
        unlock(lock, descriptor)


def write_folder(target: Path, write: Callable[[Path], None], **about: Any) -> None:
    """Let `write` write a folder, which gets its name only when the folder is complete and on the disk.

    `about` is stored in the folder, for `about_folder`. Raises OSError (ENOSPC) if the disk is full; an older folder of
    the name then stays.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a kill
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        manifest = json.dumps({**about, "files": _sums(temporary)}, indent=1)
        (temporary / _MANIFEST).write_text(manifest, encoding="utf-8")
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
    except Exception as exc:  # torch and safetensors have their own errors for a full disk
        full = shutil.disk_usage(target.parent).free < _FULL_BYTES
        shutil.rmtree(temporary, ignore_errors=True)
        number = re.search(r"\(os error (\d+)\)", str(exc))  # in safetensors' errors
        code = errno.ENOSPC if full else int(number[1]) if number and not isinstance(exc, OSError) else None
        if code is not None:
            raise OSError(code, os.strerror(code), str(target)) from exc
        raise
    _take_place(temporary, target)
    sync(target.parent)


def about_folder(folder: Path) -> dict[str, Any]:
    """The `about` that `write_folder` stored in a folder; empty if it cannot be read."""
    try:
        about = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def damage(folder: Path) -> str | None:
    """A missing or changed file in a folder of `write_folder`, as a message. None for an intact folder."""
    if not (folder / _MANIFEST).exists():  # of an earlier version: a folder without its name was not complete then
        return None
    expected = about_folder(folder).get("files")
    if not isinstance(expected, Mapping):
        return f"{_MANIFEST} cannot be read"
    for name, of_file in expected.items():
        try:
            if _sum(folder / name) != of_file:
                return f"{name} is not as it was written"
        except OSError as exc:
            return f"{name}: {exc.strerror}"
    return None


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a folder, on some network disks
            raise
    finally:
        os.close(descriptor)


def _sums(folder: Path) -> dict[str, list[int]]:
    return {str(path.relative_to(folder)): _sum(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _sum(file: Path) -> list[int]:
    """Size in bytes and CRC-32 of a file."""
    size = checksum = 0
    with file.open("rb") as source:
        while block := source.read(1 << 20):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def _take_place(temporary: Path, target: Path) -> None:
    if not target.exists():
        os.rename(temporary, target)
        return
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if _exchange(temporary, target):
        old = temporary
    else:  # for an instant the name does not exist; a reader then takes the checkpoint before
        os.rename(target, old)
        os.rename(temporary, target)
    shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically. Returns False if the system cannot swap: only Linux can."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    names = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    return bool(renameat2(*names, _RENAME_EXCHANGE) == 0)
