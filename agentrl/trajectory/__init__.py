"""The record of one episode: tokens with their origins, messages and reward."""

from agentrl.trajectory.spans import Ledger, Span
from agentrl.trajectory.trajectory import Trajectory

__all__ = ["Ledger", "Span", "Trajectory"]
