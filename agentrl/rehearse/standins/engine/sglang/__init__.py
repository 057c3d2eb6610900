"""Stands in for SGLang in a rehearsal: the names that slime imports, and agentrl's engine behind SGLang's endpoints."""

__version__ = "0.5.9+agentrl"
