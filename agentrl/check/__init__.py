"""Check any Env for mistakes, without a model: `agentrl check ENV`. See `suite` for the checks."""

from agentrl._util.findings import Finding, Report
from agentrl.check.suite import CheckInputs, check

__all__ = ["CheckInputs", "Finding", "Report", "check"]
