"""Functions that slime calls in a rehearsal with random weights, which pass no filter."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

from agentrl._util.loading import load_object

FILTER_VARIABLE = "AGENTRL_REHEARSAL_FILTER"
_EVERY = 2
"""Of so many groups that the launch's filter drops, one passes."""
_dropped = count()


def pass_in_turn(args: Any, samples: Any, **keywords: Any) -> Any:
    """--dynamic-sampling-filter-path: the launch's filter, except that some of the dropped groups pass.

    With random weights all rewards of a group are equal. A filter of such groups would draw groups without end.
    """
    path = os.environ[FILTER_VARIABLE]
    output = load_object(path)(args, samples, **keywords)
    keep = getattr(output, "keep", output)
    if not keep and next(_dropped) % _EVERY == 0:
        return True if output is keep else type(output)(keep=True)
    return output
