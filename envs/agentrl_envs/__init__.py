"""Environments for agentrl, a package each."""

__version__ = "0.1.0"
