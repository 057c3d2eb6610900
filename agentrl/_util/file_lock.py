"""A lock between processes, made of a file. The holder removes the file. A killed process frees its lock."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("agentrl")


def try_lock(file: Path) -> int | None:
    """The descriptor for `unlock`. None while another process holds the lock.

    Raises OSError if the file cannot be opened. On a file system without locks every process gets the lock, with a
    warning.
    """
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as exc:
            log.warning("%s cannot be locked (%s): let no other process write there", file, exc.strerror)
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return descriptor
        os.close(descriptor)  # the earlier holder has just removed the file


def unlock(file: Path, descriptor: int) -> None:
    file.unlink(missing_ok=True)
    os.close(descriptor)
