"""torch's threads sleep while they wait, so that other programs and threads get their cores."""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("agentrl")

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables with which users choose how threads wait. OpenMP reads the variables when torch is imported."""
_warned: list[bool] = []


def wait_passively() -> None:
    """Let the threads of a later imported torch sleep while they wait, unless the environment has a setting.

    By default the threads spin. On shared cores, as in an engine beside an event loop, a spinning thread delays the
    working thread by a factor of ten and more. If torch is already imported, a warning gives the variables to
    set.
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
