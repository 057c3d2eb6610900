"""Reads a record of any input into an EpisodeRecord."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.errors import ConfigError, LedgerError
from agentrl.types import JSON
from agentrl.view.model import EpisodeRecord
from agentrl.view.readers import chat, dumps, own, traces

_KNOWN = "agentrl's trajectories, slime's dumps, traces of verifiers, ATIF, chat"


def read_record(data: JSON, where: str) -> EpisodeRecord:
    """The episode in a JSON value. Raises ConfigError (`where: problem; remedy`)."""
    reader = next((read for fits, read in _READERS if fits(data)), None)
    if reader is None:
        raise ConfigError(f"{where}: in no known format ({_KNOWN})")
    try:
        return reader(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, LedgerError) as exc:
        raise ConfigError(f"{where}: damaged ({type(exc).__name__}: {exc}); record it again") from exc


def _is_sample(data: JSON) -> bool:
    return isinstance(data, dict) and "response_length" in data


_READERS = (
    (own.is_own, own.read),
    (_is_sample, dumps.read),
    (traces.is_trace, traces.read),
    (chat.is_atif, chat.read_atif),
    (chat.is_row, chat.read_row),
)


def read_log(lines: Sequence[str], where: str) -> EpisodeRecord:
    """The log of an agent's session, an event on each line. Raises ConfigError."""
    from agentrl.gateway.session.session import Session
    from agentrl.trajectory.trajectory import Trajectory

    trajectory = Trajectory()
    try:
        Session.replay(iter(lines)).write(trajectory)
    except (KeyError, TypeError, ValueError, LedgerError) as exc:
        raise ConfigError(f"{where}: a session's log that cannot be read ({type(exc).__name__}: {exc})") from exc
    return own.read(trajectory.to_json())


def is_event(data: Mapping[str, JSON]) -> bool:
    """Whether a line belongs to the log of an agent's session."""
    return isinstance(data, dict) and "event" in data and "tokens" not in data
