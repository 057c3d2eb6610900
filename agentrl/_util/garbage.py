"""Fewer garbage collections in the processes of agentrl's commands.

Python's collector walks every container repeatedly, and thousands of live episodes have millions of containers. No
container is garbage before its episode ends. Few need the collector afterwards.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 50, 100)
"""The thresholds of the collector: new containers, young collections and middle-aged collections."""


class _Collector:
    is_ours = False
    is_settled = False


def claim_process() -> None:
    """Mark this process as agentrl's own. In other processes the collector belongs to the host or to the user."""
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
