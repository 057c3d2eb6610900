"""The record of one episode: its tokens, who wrote which, its messages and its reward."""

from agentrl.trajectory.spans import Ledger, Span
from agentrl.trajectory.trajectory import Trajectory

__all__ = ["Ledger", "Span", "Trajectory"]
