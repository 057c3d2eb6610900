"""Environments for agentrl, one package each."""
