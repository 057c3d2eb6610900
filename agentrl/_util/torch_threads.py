"""How torch's threads wait for each other: asleep, so that other programs and threads get their cores."""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("agentrl")

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which a user decides how they wait. OpenMP reads them when torch is imported."""
_warned: list[bool] = []


def wait_passively() -> None:
    """Have the threads of a torch that is imported later sleep while they wait, unless the environment decides.

    By default they spin. On cores that others use too, as in an engine beside an event loop, a thread that spins keeps
    the one that it waits for from running: ten times the time and more. If torch is there already, a warning says what
    to set.
    """
    if any(name in os.environ for name in _CHOICES):
        return
    torch = sys.modules.get("torch")
    if torch is None:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    elif not _warned and torch.get_num_threads() > 1 and not torch.cuda.is_available():
        _warned.append(True)
        log.warning(
            "torch was imported before agentrl, so its threads spin while they wait, which is slow beside other work: "
            "import agentrl.train first, or set OMP_WAIT_POLICY=passive"
        )
