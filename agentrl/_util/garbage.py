"""Fewer garbage collections in a process that is agentrl's own.

Python's collector walks every container again and again, and thousands of live episodes have millions. None of them is
garbage before it ends, and hardly any needs the collector then.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 50, 100)
"""New containers before the young are collected; such collections before the middle-aged; such before the old."""


class _Collector:
    is_ours = False
    is_settled = False


def claim_process() -> None:
    """Say that this process runs an agentrl command. In a host's or a library user's, the collector is theirs."""
    _Collector.is_ours = True


def settle() -> None:
    """Collect less often from now on, and leave out what has been loaded so far. Only in a claimed process, and once.

    To be called when everything is loaded and before episodes are played.
    """
    if not _Collector.is_ours or _Collector.is_settled:
        return
    _Collector.is_settled = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
