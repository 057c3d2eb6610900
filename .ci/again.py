"""pytest with the arguments given. A test that fails beside others is run once more, alone: again.py ARGUMENTS...

Some tests ask for answers in seconds, and a machine that a stranger loads does not give them. Each test that passed
only at the second try is printed. The fifth such test fails the command; so does a test that fails twice. Steps of CI
share the count: AGENTRL_PASSED names CI's file of the tests that passed, and `.second` is added to its name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

_LIMIT = 5
"""The command fails from so many second tries on."""
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    signal.signal(signal.SIGTERM, _exit)  # so that pytest ends, too
    earlier = _earlier()
    first = _pytest(*sys.argv[1:])
    failed = _failed() if first == 1 else []
    if not failed:
        return first
    if len(earlier) + len(failed) >= _LIMIT:
        _print(f"no second try, because {_LIMIT} tests would have one:", [*earlier, *failed])
        return first
    _print("these failed beside others, and are run once more, alone:", failed)
    code = _pytest(*failed, "-n", "0")
    passed = sorted(set(failed).difference(_failed() if code else ()))
    _print(
        f"passed only at the second try ({len(earlier) + len(passed)} of at most {_LIMIT - 1}):", [*earlier, *passed]
    )
    if (notes := _notes()) is not None:
        notes.write_text("".join(f"{test}\n" for test in [*earlier, *passed]), encoding="utf-8")
    return code


def _pytest(*arguments: str) -> int:
    _FAILED.unlink(missing_ok=True)
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed() -> list[str]:
    return sorted(json.loads(_FAILED.read_text(encoding="utf-8"))) if _FAILED.exists() else []


def _notes() -> Path | None:
    passed = os.environ.get("AGENTRL_PASSED")
    return Path(f"{passed}.second") if passed else None


def _earlier() -> list[str]:
    """The second tries of earlier steps. Without a file of passed tests, this is CI's first step."""
    notes = _notes()
    if notes is None or not notes.exists() or not Path(os.environ["AGENTRL_PASSED"]).exists():
        return []
    return notes.read_text(encoding="utf-8").splitlines()


def _print(text: str, tests: list[str]) -> None:
    print(f"\nagain: {text}", *tests, sep="\n  ", flush=True)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
