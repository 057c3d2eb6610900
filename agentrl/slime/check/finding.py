"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    ERROR = "error"
    """The run would stop, or train something else than what was meant."""
    WARNING = "warning"
    """The run works, and loses quality, speed or memory."""
    UNCHECKED = "unchecked"
    """What could not be looked at from here, and why."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str
    """One line that names the thing and the remedy."""
    subject: str = ""
    """What was not checked, for the verdict."""


def error(text: str) -> Finding:
    return Finding(Level.ERROR, text)


def warning(text: str) -> Finding:
    return Finding(Level.WARNING, text)


def unchecked(subject: str, why: str) -> Finding:
    return Finding(Level.UNCHECKED, f"{subject}: {why}", subject)


def note(text: str) -> Finding:
    return Finding(Level.NOTE, text)
