"""The error tree and the failure taxonomy. A bad episode is data, not a crash.

    AgentRLError
    ├── ConfigError       the user's configuration; ends a run before its first token
    │   └── TemplateError     a chat template that cannot be continued exactly
    ├── ToolError         a tool speaks to the model; nothing failed
    ├── InfraError        the world broke, not the policy
    │   ├── EngineError       the inference engine
    │   └── SandboxError      a sandbox
    └── LedgerError       an invariant of a trajectory is broken: a bug in agentrl

What an Env raises is sorted into two kinds of `Failure` and recorded on the trajectory with the boundary it crossed.
An InfraError or a deadline is an `environment` failure: masked, and out of its group's baseline. Anything else is a
`bug`. What the *policy* does wrong (a bad tool call, a wrong answer, no turns left) is no failure: it is trained on.
"""

from __future__ import annotations

import traceback as _traceback
from dataclasses import dataclass
from typing import Literal, TypeAlias


class AgentRLError(Exception):
    """Base of all errors raised by agentrl."""


class ConfigError(AgentRLError, ValueError):
    """Something the user wrote cannot work. The message names the thing and the remedy, in one line."""


class TemplateError(ConfigError):
    """A chat template cannot be rendered or continued. The message shows the failing case."""


class ToolError(AgentRLError):
    """Raise it in a tool to answer the model with its text. Nothing failed; the episode goes on."""


class InfraError(AgentRLError):
    """The world broke: a container died, a retriever is down. Not the policy's doing, so not trained on."""


class EngineError(InfraError):
    """The inference engine did not answer, or refused the request."""


class SandboxError(InfraError):
    """A sandbox did not start, died, or lost its connection."""


class LedgerError(AgentRLError, AssertionError):
    """A token is unaccounted for. A bug in agentrl: please report it with the message."""


Boundary: TypeAlias = Literal["share", "reset", "step", "tool", "score", "close", "engine", "render"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode could not be finished, as picklable data."""

    kind: Literal["environment", "bug"]
    boundary: Boundary
    error: str
    """Type and text of the exception, one line."""
    traceback: str = ""

    @classmethod
    def of(cls, exc: BaseException, boundary: Boundary) -> Failure:
        """Sort an exception: InfraError, TimeoutError and OSError are the environment's; the rest are bugs."""
        kind: Literal["environment", "bug"] = (
            "environment" if isinstance(exc, InfraError | TimeoutError | OSError) else "bug"
        )
        text = " ".join(str(exc).split())
        lines = _traceback.format_exception(type(exc), exc, exc.__traceback__)
        return cls(kind, boundary, f"{type(exc).__name__}: {text}" if text else type(exc).__name__, "".join(lines))
