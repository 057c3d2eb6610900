"""The finding of a check, and its level."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    ERROR = "error"
    """The run would stop, or would not train what was meant."""
    WARNING = "warning"
    """The run works, but loses quality, speed or memory."""
    UNCHECKED = "unchecked"
    """Something could not be checked from here. The text gives the reason."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class LaunchFinding:
    level: Level
    text: str
    """One line that names the thing and the remedy."""
    subject: str = ""
    """The part that was not checked, for the verdict."""


def error(text: str) -> LaunchFinding:
    return LaunchFinding(Level.ERROR, text)


def warning(text: str) -> LaunchFinding:
    return LaunchFinding(Level.WARNING, text)


def unchecked(subject: str, why: str) -> LaunchFinding:
    return LaunchFinding(Level.UNCHECKED, f"{subject}: {why}", subject)


def note(text: str) -> LaunchFinding:
    return LaunchFinding(Level.NOTE, text)
