"""A finding of a check, and its level."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    ERROR = "error"
    """The run would stop, or would train wrongly."""
    WARNING = "warning"
    """The run works, but loses quality, speed or memory."""
    UNCHECKED = "unchecked"
    """A part could not be checked from here. The text gives the reason."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class LaunchFinding:
    level: Level
    text: str
    """A line with the cause and the remedy."""
    subject: str = ""
    """The unchecked part, for the verdict."""


def error(text: str) -> LaunchFinding:
    return LaunchFinding(Level.ERROR, text)


def warning(text: str) -> LaunchFinding:
    return LaunchFinding(Level.WARNING, text)


def unchecked(subject: str, why: str) -> LaunchFinding:
    return LaunchFinding(Level.UNCHECKED, f"{subject}: {why}", subject)


def note(text: str) -> LaunchFinding:
    return LaunchFinding(Level.NOTE, text)
