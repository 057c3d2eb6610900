"""pytest with the arguments given. A few tests that fail beside others are run once more, alone: again.py ARGUMENTS...

Some tests ask for answers in seconds, and a machine that a stranger loads does not give them. Both runs
are printed, with the names of what failed first. More failures than `_FEW`, or one that repeats, fail the command.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

_FEW = 3
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    signal.signal(signal.SIGTERM, _exit)  # so that pytest ends, too
    pytest = [sys.executable, "-m", "pytest"]
    _FAILED.unlink(missing_ok=True)
    first = subprocess.run([*pytest, *sys.argv[1:]], check=False).returncode
    failed = sorted(json.loads(_FAILED.read_text())) if first == 1 and _FAILED.exists() else []
    if not 0 < len(failed) <= _FEW:
        return first
    print("\nagain: these failed beside others, and are run once more, alone:", *failed, sep="\n  ", flush=True)
    return subprocess.run([*pytest, *failed, "-n", "0"], check=False).returncode


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
