"""The error tree and the failure taxonomy. A bad episode is data, not a crash.

    AgentRLError
    ├── ConfigError       the user's configuration; ends a run before its first token
    │   └── TemplateError     a chat template that cannot be continued exactly
    ├── ToolError         a tool speaks to the model; nothing failed
    │   └── CallError         the call itself is wrong: an unknown tool, or arguments that do not fit
    ├── InfraError        the world broke, not the policy
    │   ├── EngineError       the inference engine
    │   │   ├── RequestError      the engine will always refuse this request
    │   │   │   └── ContextFullError  the conversation is longer than a model can read
    │   │   └── EngineLostError   the engine of a training run is gone: the run ends
    │   └── SandboxError      a sandbox
    ├── CanaryError       a run cannot be learning, and is stopped early
    ├── ResumeError       an aborted episode cannot continue where it stopped, and restarts
    └── LedgerError       an invariant of a trajectory is broken: a bug in agentrl

A `Failure` of an episode has one of three kinds, and is recorded on the trajectory with the crossed boundary. An
InfraError, a deadline, a lost connection or a full disk is an `environment` failure: the episode is masked, and left
out of its group's baseline. The same errors of the inference engine are an `engine` failure, which is treated alike and
does not count against the Env. Any other error is a `bug`, including a wrong path. Mistakes of the *policy* (a bad tool
call, a wrong answer, no turns left) are not failures: they are trained on. A bad tool call is a `BadCall`, treated by
the `BadCallPolicy`.
"""

from __future__ import annotations

import asyncio
import difflib
import traceback as _traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentrl.blame import is_the_worlds
from agentrl.plain import text


class AgentRLError(Exception):
    """The base class of agentrl's errors. The message gives the cause and the remedy, in one line."""


class ConfigError(AgentRLError, ValueError):
    """A configuration, a command or an Env class cannot work as written. The message gives the cause and the remedy, in
    one line."""


class TemplateError(ConfigError):
    """A chat template cannot be rendered or continued. The message shows the failing case."""


class ToolError(AgentRLError):
    """An error for the model, raised in a tool: the model reads the text, and the episode continues without a
    failure."""


class CallError(ToolError):
    """A ToolError that blames the call: a BadCall of kind "content".

    The default `exec_tool` raises a CallError for an unknown tool or wrong arguments. An overriding `exec_tool` should
    do so, too.
    """


class InfraError(AgentRLError):
    """Something outside of the policy broke: a container died, a retriever is down. The policy is not to blame, so the
    episode is not trained."""


class EngineError(InfraError):
    """The inference engine did not answer, or refused the request."""


class RequestError(EngineError):
    """The engine will always refuse this request: too long, an unknown parameter or an unknown token id.

    A server answers such a request with HTTP 400. Any other EngineError may blame the engine itself.
    """


class ContextFullError(RequestError):
    """The conversation is longer than the model can read. After the first turn the episode ends with
    StopReason.CONTEXT_FULL."""


class EngineLostError(EngineError):
    """The engine of a training run is gone, or has other weights than the run sent. The run ends.

    No episode can continue, so an EngineLostError is not an episode's failure.
    """


class SandboxError(InfraError):
    """A sandbox did not start, died, or lost its connection."""


class ResumeError(AgentRLError):
    """An aborted episode cannot continue where it stopped; restart it. The message gives the reason."""


class CanaryError(AgentRLError):
    """A run cannot be learning. The message gives the observation, the step and a hint."""


class LedgerError(AgentRLError, AssertionError):
    """A token is unaccounted for: a bug in agentrl. Please report the message."""


@dataclass(frozen=True, slots=True)
class BadCall:
    """The reason why a tool call was not executed."""

    kind: Literal["structural", "content"]
    """structural: the call cannot be read, because it is unclosed, not JSON, or has no name. content: the call names no
    tool, or has wrong arguments."""
    detail: str


@dataclass(frozen=True, slots=True)
class BadCallPolicy:
    """The treatment of turns with wrong tool calls. Each wrong call is answered, and the episode continues."""

    in_a_row: int = 3
    """Number of consecutive wrong turns that end the episode with StopReason.BAD_CALLS."""
    message: str = "Your tool call could not be read: {detail}"
    """The text that the model reads after a structural error; `{detail}` is filled in."""
    mask: bool = False
    """Do not train turns with a structural error. Their tokens count as `malformed`."""
    penalty: float = 0.0
    """Subtracted from the reward for each turn with a structural error; logged as the part `bad_call_penalty`."""

    def __post_init__(self) -> None:
        if self.in_a_row < 1:
            raise ConfigError(f"BadCallPolicy: in_a_row must be at least 1, not {self.in_a_row}")

    def reply(self, detail: str) -> str:
        return self.message.replace("{detail}", detail)  # not str.format: the message may show JSON


FailureKind: TypeAlias = Literal["environment", "engine", "bug"]
Boundary: TypeAlias = Literal["share", "reset", "step", "tool", "run", "score", "close", "engine", "render"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an episode could not be finished, as picklable data."""

    kind: FailureKind
    boundary: Boundary
    error: str
    """Type and text of the exception, one line."""
    traceback: str = ""

    @classmethod
    def of(cls, exc: BaseException, boundary: Boundary) -> Failure:
        """Classify an exception. A failure of the world has kind "engine" at the boundary "engine", and else
        "environment". So does a group of only such exceptions. Any other exception is a "bug"."""
        outside: FailureKind = "engine" if boundary == "engine" else "environment"
        worlds = all(isinstance(leaf, asyncio.CancelledError) or is_the_worlds(leaf) for leaf in leaves(exc))
        kind: FailureKind = outside if worlds else "bug"
        lines = _traceback.format_exception(type(exc), exc, exc.__traceback__)
        return cls(kind, boundary, with_remedy(exc, one_line(exc)), text("".join(lines)))


class BugError(AgentRLError):
    """An Env, a reward function or agentrl itself has a bug. The message ends with the traceback."""

    def __init__(self, failure: Failure, session_id: str) -> None:
        self.failure, self.session_id = failure, session_id
        self.summary = f"{failure.error} (in {failure.boundary}, episode {session_id})"
        super().__init__(f"{self.summary}\n{failure.traceback}")


_REMEDIES = {
    "signal only works in main thread": (
        "this code does not always run in the main thread, and only there can signals end it in time: grade with "
        "agentrl.rewards.math or in_process, or call math-verify's parse(..., parsing_timeout=None) and "
        "verify(..., timeout_seconds=None)"
    ),
    "SQLite objects created in a thread": (
        "plain `def` methods run in threads: connect with sqlite3.connect(..., check_same_thread=False), or write "
        "the methods as `async def`"
    ),
}
"""Words of an exception whose cause is the thread -> the remedy."""


def with_remedy(exc: BaseException, words: str) -> str:
    """`words` about an exception; for code that works only in a certain thread with the remedy."""
    chain = [one_line(error) for error in (exc, exc.__cause__, exc.__context__) if error is not None]
    remedies = (remedy for text, remedy in _REMEDIES.items() if any(text in line for line in chain))
    return "; ".join([words.rstrip("."), remedy]) if (remedy := next(remedies, None)) else words


def leaves(exc: BaseException) -> list[BaseException]:
    """The exceptions in a group and its subgroups. Any other exception is its only leaf."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for member in exc.exceptions for leaf in leaves(member)]
    return [exc]


def one_line(exc: BaseException) -> str:
    """Type and text of an exception in one line. A group lists its exceptions. Never raises."""
    try:
        words = text(" ".join(str(exc).split()))
    except Exception:  # noqa: BLE001 - the boundary of a foreign __str__: the exception itself is reported
        words = ""
    if isinstance(exc, BaseExceptionGroup):
        words = f"{text(exc.message)} ({'; '.join(map(one_line, exc.exceptions))})"
    return f"{type(exc).__name__}: {words}" if words else type(exc).__name__


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "", *, most: int = 1, cutoff: float = 0.6) -> str:
    """The end of an error message: `; did you mean group_size?`, with at most `most` names. Without a similar name:
    `otherwise`, where {} is replaced by all names."""
    spelled = {candidate.lower(): candidate for candidate in names}
    close = [spelled[candidate] for candidate in difflib.get_close_matches(name.lower(), spelled, most, cutoff)]
    return f"; did you mean {', '.join(close)}?" if close else otherwise.replace("{}", ", ".join(spelled.values()))


def unknown_key(name: str, keys: Iterable[str]) -> str:
    """An error message: `unknown key group_sise; did you mean group_size?`. If no key is similar, the message lists all
    known keys."""
    names, last = list(keys), name.rpartition(".")[2].lower()
    if short := [candidate for candidate in names if "".join(word[:1] for word in candidate.split("_")) == last]:  # lr
        return f"unknown key {name}; did you mean {short[0]}?"
    prefixes = [
        candidate
        for candidate in names
        if candidate[: len(last)] == last[: len(candidate)] and len(candidate) > 2 < len(last)
    ]
    otherwise = f"; did you mean {prefixes[0]}?" if prefixes else "; the keys are {}"
    return f"unknown key {name}{did_you_mean(last, names, otherwise)}"
