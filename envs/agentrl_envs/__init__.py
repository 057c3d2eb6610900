"""Environments for agentrl, a package each."""
