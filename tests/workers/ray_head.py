"""A Ray cluster of one node. It prints its address, and ends with its standard input."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read at import

from ray.cluster_utils import Cluster

_TRIES = 5
_HEAD = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    # A driver's prestarted workers are in the way: agentrl's actors have variables of their own, and use none of them.
    "_system_config": {"prestart_worker_first_driver": False},
}
"""A head node without the processes that these tests do not need. Each would import Ray, for seconds of a core."""


def started(num_cpus: int, **options: Any) -> Cluster:
    """A node ends where its agents, two programs of Python, are not ready after 15 s. Ray has no setting for that, so a
    busy machine gets several tries."""
    for left in reversed(range(_TRIES)):
        try:
            return Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus, **_HEAD}, **options)
        except Exception:  # Ray raises no other class
            if not left:
                raise
    raise AssertionError


if __name__ == "__main__":
    cluster = started(4)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
