"""A Ray cluster of one node. It prints its address, and ends with its standard input."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

from ray._private import services
from ray.cluster_utils import Cluster

HEAD = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    # A driver's prestarted workers are in the way: agentrl's actors have variables of their own, and use none of them.
    "_system_config": {"prestart_worker_first_driver": False},
}
"""A head node without the processes that these tests do not need. Each would import Ray, for seconds of a core."""
_START_S = 300.0


def _node(ask: Any, *given: Any) -> Any:
    """Ray gives a node 30 s to start its agents, two programs of Python. A busy machine takes longer."""
    end = time.monotonic() + _START_S
    while True:
        try:
            return ask(*given)
        except RuntimeError:
            if time.monotonic() > end:
                raise


services.get_node = partial(_node, services.get_node)

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **HEAD})
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
