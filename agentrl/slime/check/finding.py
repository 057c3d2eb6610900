"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    ERROR = "error"
    """The run would stop, or train something else than what was meant."""
    WARNING = "warning"
    """The run works, and loses quality, speed or memory."""
    NOTE = "note"
    """Good to know; or what could not be checked, and why."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str
    """One line that names the thing and the remedy."""


def error(text: str) -> Finding:
    return Finding(Level.ERROR, text)


def warning(text: str) -> Finding:
    return Finding(Level.WARNING, text)


def note(text: str) -> Finding:
    return Finding(Level.NOTE, text)
