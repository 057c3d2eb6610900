"""The owner of a sandbox, and whether the owner is gone.

Owners invisible from here never count as gone, unless AGENTRL_OWNERS names a folder of heartbeats shared with this
process. Otherwise the sandboxes' deadlines decide.
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
"""Environment variable: a folder shared by several machines or containers, for heartbeats."""
RUN = "AGENTRL_RUN"
"""Environment variable: the name of the run."""

BEAT_S = 15.0
"""Seconds between heartbeats."""
_STALE_S = 300.0
"""Seconds of silence after which an owner is gone. Network file systems may show times a minute old."""
_FORGOTTEN_S = 7 * 86400.0
"""Seconds until heartbeats of dead owners are removed. By then the deadlines of their sandboxes have passed."""


def run_name() -> str:
    """The name of this run: AGENTRL_RUN, or the name of the program. Letters, digits and `._-`, at most 63."""
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
    """Show other processes that this process lives, if AGENTRL_OWNERS names a shared folder."""
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
