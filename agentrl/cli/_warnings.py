"""Report a coroutine that was never awaited at the line that created it, not where Python deleted it."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from agentrl._util.loading import not_the_users, short

_MADE_AT = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_ORIGIN_FRAMES = 3


def name_unawaited_lines() -> None:
    """Have Python record where this thread creates coroutines. Warn of each forgotten coroutine in a single line."""
    sys.set_coroutine_origin_tracking_depth(_ORIGIN_FRAMES)
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        line = unawaited(str(message), f"{short(filename)}:{lineno}")
        if line is None:
            before(message, category, filename, lineno, *rest)
        else:
            sys.stderr.write(f"warning: {line}\n")

    warnings.showwarning = show  # type: ignore[assignment]


def unawaited(message: str, collected_at: str) -> str | None:
    """`env.py:12: coroutine 'f' was never awaited; write ...`, or None for any other warning."""
    if "was never awaited" not in message:
        return None
    places = [place for place in _MADE_AT.finditer(message) if not not_the_users(place["file"])]
    location = f"{short(places[-1]['file'])}:{places[-1]['line']}" if places else collected_at
    return f"{location}: {message.splitlines()[0]}; write `await` in front of the call"
