"""Fewer garbage collections in the processes of agentrl's commands.

Python's collector walks every container repeatedly, and thousands of live episodes have millions of containers. No
container is garbage before its episode ends. Afterwards, reference counting frees most of them without the collector.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 50, 100)
"""The arguments of `gc.set_threshold`: new containers before a young collection, young collections before a
middle-aged collection, and middle-aged collections before a full collection."""


class _Collector:
    is_ours = False
    is_settled = False


def claim_process() -> None:
    """Mark this process as agentrl's own. In other processes the collector belongs to the host or to the user."""
    _Collector.is_ours = True


def settle() -> None:
    """Collect less often from now on, and never the objects that exist now. Has an effect only in a claimed process,
    and only once.

    Call the function when everything is loaded, before episodes are played.
    """
    if not _Collector.is_ours or _Collector.is_settled:
        return
    _Collector.is_settled = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
