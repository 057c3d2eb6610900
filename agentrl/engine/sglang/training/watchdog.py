"""Runs a command, and ends the command with all of its processes when the process that asked for it is gone.

    python watchdog.py PARENT FOLDER COMMAND...

PARENT is the id of the process that asks. FOLDER is removed if PARENT could not remove it. The command runs in a
separate session and process group. The command ends by itself, on SIGTERM to this program, or when PARENT is no longer
the parent: a killed trainer cannot clean up, and must leave no server running. The exit status is that of the command.

The program runs as a file, and imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import FrameType

_POLL_S = 0.2
_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None:  # so that `_end` can wait for the command's orphans
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def die_with_me() -> None:
        if libc is not None:  # if this program itself is killed
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    try:
        # One thread, so that preexec_fn is safe.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_me)
        while child.poll() is None and not signals and os.getppid() == parent:
            time.sleep(_POLL_S)
        _end(child)
        return child.returncode if child.returncode >= 0 else 128 - child.returncode
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the command, then kill its process group, and wait for the group: the command with all of its
    processes. A killed process may need a moment to end, and holds its memory until then."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + _GRACE_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-child.pid, os.WNOHANG) == (0, 0):
                time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
