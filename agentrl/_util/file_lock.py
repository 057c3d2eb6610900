"""A lock between processes, on a file or a folder. A killed process frees its lock.

The package `filelock` leaves the file behind, and raises an error on a file system without locks.
"""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("agentrl")


def try_lock(path: Path) -> int | None:
    """Take the lock, and return the descriptor for `unlock`. None if another process holds the lock.

    A missing file is created.

    Raises OSError if the path cannot be opened. On a file system without locks every process gets the lock, with a
    warning.
    """
    while True:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as exc:
            log.warning("%s cannot be locked (%s): let no other process write there", path, exc.strerror)
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # the earlier holder has just removed the file


def unlock(path: Path, descriptor: int) -> None:
    """Free the lock, and remove a file."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
    os.close(descriptor)
