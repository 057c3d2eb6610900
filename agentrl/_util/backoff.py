"""The pause between two attempts at a service: doubled each time, or as long as the server asks for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_RETRY_AFTER_S = 60.0
"""A longer Retry-After of a server, in seconds, is shortened to this."""
jitter = random.Random()  # an Env may have seeded the module's generator


def pause(failures: int, first_s: float, longest_s: float, factor: float = 2.0) -> float:
    """Seconds to wait after this many failures in a row, 1 or more.

    The pause is `first_s`, then each time `factor` times as long, at most `longest_s`. Up to half is subtracted at
    random, so that many clients do not return at once.
    """
    return min(first_s * factor ** min(failures - 1, 30), longest_s) * jitter.uniform(0.5, 1.0)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float:
    """Seconds until the server accepts requests again, at most a minute: `retry-after-ms`, or `Retry-After` in seconds
    or as a date. 0 if the headers are absent or cannot be read.
    """
    for name, unit in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        try:
            return min(max(0.0, float(headers[name]) * unit), LONGEST_RETRY_AFTER_S)
        except (KeyError, ValueError):
            continue
    try:
        date = parsedate_to_datetime(headers["Retry-After"])
    except (KeyError, ValueError, TypeError, OverflowError):
        return 0.0
    seconds = (date.replace(tzinfo=date.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds()
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)
