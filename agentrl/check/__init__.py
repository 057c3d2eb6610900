"""A conformance suite for any Env, which needs no model: `agentrl check`. See `suite` for what is checked."""

from agentrl.check.findings import Finding, Report
from agentrl.check.suite import CheckInputs, check

__all__ = ["CheckInputs", "Finding", "Report", "check"]
