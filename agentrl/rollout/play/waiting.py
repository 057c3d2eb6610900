"""Warn once a minute about the episodes for which a step, an evaluation or the end of a run waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.rollout.play.in_flight import of_kind

log = logging.getLogger("agentrl")

EVERY_S = 60.0
"""Seconds between two warnings. An episode is listed if its state has not changed for so many seconds."""
_NAMED = 4


@contextmanager
def waiting_for(waiter: str, kind: str = "train") -> Iterator[None]:
    """While the context is open, a warning each minute lists the episodes of a kind whose state has not changed for a
    minute.

    A thread prints the warning, so that a hook that blocks the event loop is listed, too.
    """
    ended = threading.Event()
    began = time.time()

    def watch() -> None:
        while not ended.wait(EVERY_S):
            if line := line_about(waiter, kind, began):
                log.warning("%s", line)

    thread = threading.Thread(target=watch, name="agentrl-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def line_about(waiter: str, kind: str, began: float) -> str:
    """The text of the warning. Empty if the state of all episodes has changed within a minute."""
    now = time.time()
    flights = [flight.to_json() for flight in of_kind(kind)]
    if not flights:
        return f"{waiter} has waited for {_minutes(now - began)}, and none of its episodes is played"
    still: list[dict[str, Any]] = [state for state in flights if now - float(str(state["since"])) >= EVERY_S]
    if not still:
        return ""
    still.sort(key=lambda state: float(state["since"]))
    named = [
        f"{state['name']} of task {state['task']!r:.60} ({state['waiting']} for {_minutes(now - state['since'])}, "
        f"after {state['turn']} turns)"
        for state in still[:_NAMED]
    ]
    more = f" and {len(still) - _NAMED} more" if len(still) > _NAMED else ""
    return (
        f"{waiter} waits for {len(still)} of {len(flights)} in flight that have not moved for a minute: "
        f"{', '.join(named)}{more}; limits.episode_s bounds an episode"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
