"""The embedded engine: a PyTorch model in this process. Imports torch."""

from agentrl.engine.local.engine import LocalEngine

__all__ = ["LocalEngine"]
