"""Exit codes of the commands. 0: done."""

from __future__ import annotations

BUG = 1
DISK_FULL = 1
USAGE_ERROR = 2
CANARY = 3
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells report it."""
TERMINATED = 143
"""Exit code after SIGTERM: 128 + SIGTERM, as shells report it."""
