"""Environments for agentrl. Each environment is a package."""

__version__ = "0.1.0"
