"""Environments for agentrl. Each environment is a package."""
