"""The owner of a sandbox, and whether this owner has ended.

An owner on another machine or in a container cannot be seen from here. If AGENTRL_OWNERS names a shared folder of
heartbeats, the heartbeats decide whether such an owner has ended. Otherwise the sandbox's deadline decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from agentrl._util.owners import Heartbeat, Owner, current, folder_time, is_dead, silent_s

__all__ = ["FOLDER", "RUN", "Owner", "current", "heartbeat", "is_gone", "run_name"]

log = logging.getLogger("agentrl")

FOLDER = "AGENTRL_OWNERS"
"""The environment variable that names a folder for heartbeats, which several machines or containers share."""
RUN = "AGENTRL_RUN"
"""The environment variable that has the name of the run."""

BEAT_S = 15.0
"""Seconds between heartbeats."""
_STALE_S = 300.0
"""An owner without a heartbeat for this many seconds has ended. Network file systems may show times a minute old."""
_FORGOTTEN_S = 7 * 86400.0
"""Seconds after which the heartbeats of dead owners are removed. By then the deadlines of their sandboxes have
passed."""


def run_name() -> str:
    """The name of this run: AGENTRL_RUN, or the name of the program. It has at most 63 letters, digits and `._-`."""
    name = os.environ.get(RUN) or Path(sys.argv[0] if sys.argv else "").stem
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[:63].strip("-") or "python"


def is_gone(owner: str, deadline: float = float("inf")) -> bool:
    """Whether a sandbox's owner is known to be gone, or the deadline (Unix time) has passed.

    In doubt, the answer is False: a sandbox with a long life is better than a sandbox taken from a live owner.
    """
    if time.time() > deadline:
        return True
    dead, folder = is_dead(owner), _folder()
    if dead is None and folder is not None and Owner.parse(owner):
        return (silent_s(folder, owner) or 0) > _STALE_S
    return bool(dead)


@contextlib.contextmanager
def heartbeat() -> Iterator[None]:
    """Write heartbeats within `with`, if AGENTRL_OWNERS names a shared folder."""
    folder = _folder()
    if folder is None:
        yield
        return
    heart = Heartbeat(folder, BEAT_S, lambda exc: _warn(folder, exc))
    heart.start()
    try:
        yield
    finally:
        heart.stop()
        _forget_the_dead(folder)


def _warn(folder: Path, exc: OSError) -> None:
    log.warning("%s: no heartbeat can be written to %s: %s", FOLDER, folder, exc.strerror)


def _forget_the_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):
        now = folder_time(folder)
        for file in folder.iterdir():
            if Owner.parse(file.name) and now - file.stat().st_mtime > _FORGOTTEN_S:
                file.unlink(missing_ok=True)


def _folder() -> Path | None:
    name = os.environ.get(FOLDER)
    return Path(name).expanduser() if name else None
