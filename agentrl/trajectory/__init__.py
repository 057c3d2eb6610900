"""The record of one episode: its tokens, who wrote which, its messages and its reward."""

from typing import Any

from agentrl._util.moved import old_name
from agentrl.trajectory.spans import Ledger, Span
from agentrl.trajectory.trajectory import Trajectory

__all__ = ["Ledger", "Span", "Trajectory"]


def __getattr__(name: str) -> Any:
    return old_name("agentrl.trajectory.trajectory", name)
