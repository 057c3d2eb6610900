"""The findings of `agentrl check`, for every kind of subject: an Env, tasks, records, a template, a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from agentrl._util.loading import short
from agentrl.plain import text
from agentrl.types import JSON


class Level(StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    """The subject would stop, or would train wrongly."""
    WARNING = "warning"
    """The subject works, but loses quality, speed or memory."""
    UNCHECKED = "unchecked"
    """A part could not be checked from here. The message gives the reason."""
    NOTE = "note"
    """A remark. Nothing is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a file. Line 0 is the whole file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{short(self.file)}:{self.line}" if self.line else short(self.file)


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake, or a remark, about the subject, with its place and the remedy."""

    level: Level
    message: str
    remedy: str = ""
    check: str = ""
    """The check that reports the finding; at level `unchecked`, the part that was not checked."""
    place: Place | None = None
    details: Mapping[str, JSON] | None = field(default=None, hash=False)
    """More about the finding, such as the episode that shows the mistake."""

    def __str__(self) -> str:
        place = f"{self.place}  " if self.place else ""
        part = f"{self.check}: " if self.check and self.level == Level.UNCHECKED else ""
        name = f" [{self.check}]" if self.check and not part else ""
        return f"{place}{self.level}: {part}{'; '.join(filter(None, (self.message, self.remedy)))}{name}"

    def to_json(self) -> dict[str, JSON]:
        row = asdict(self)
        del row["place"]
        file, line = (self.place.file, self.place.line) if self.place else (None, None)
        return {**row, "level": str(self.level), "file": file, "line": line}


def error(message: str) -> Finding:
    return Finding(Level.ERROR, message)


def warning(message: str) -> Finding:
    return Finding(Level.WARNING, message)


def unchecked(part: str, reason: str) -> Finding:
    return Finding(Level.UNCHECKED, reason, check=part)


def note(message: str) -> Finding:
    return Finding(Level.NOTE, message)


@dataclass(slots=True)
class Report:
    """The result of all checks of a subject."""

    findings: list[Finding] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    """Name of a check -> the result of the check, or how much was checked, in words."""
    figures: dict[str, JSON] = field(default_factory=dict)
    """Measured numbers, for programs that read the report as JSON."""

    def error(
        self, check: str, place: Place, message: str, remedy: str, play: Mapping[str, JSON] | None = None
    ) -> None:
        self.add(Finding(Level.ERROR, _line(message), remedy, check, place, play))

    def warn(self, check: str, place: Place, message: str, remedy: str, play: Mapping[str, JSON] | None = None) -> None:
        self.add(Finding(Level.WARNING, _line(message), remedy, check, place, play))

    def skip(self, part: str, reason: str) -> None:
        """Report a part that could not be checked. A later reason replaces an earlier one."""
        self.findings = [finding for finding in self.findings if not _skips(finding, part)]
        self.findings.append(unchecked(part, reason))

    def add(self, finding: Finding) -> None:
        """Store a finding, unless the same check already has a finding for the place: the first finding is the
        clearest."""
        if not any((earlier.check, earlier.place) == (finding.check, finding.place) for earlier in self.findings):
            self.findings.append(finding)

    @property
    def mistakes(self) -> list[Finding]:
        """The errors and warnings."""
        return [finding for finding in self.findings if finding.level in (Level.ERROR, Level.WARNING)]

    def has(self, *checks: str) -> bool:
        """Whether any of the checks reported a mistake."""
        return any(finding.check in checks for finding in self.mistakes)

    def sort(self) -> None:
        """Put the worst findings first, and sort the findings of a level by place."""
        levels = list(Level)
        self.findings.sort(key=lambda finding: (levels.index(finding.level), finding.place or Place("")))

    def of_level(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    @property
    def errors(self) -> list[Finding]:
        return self.of_level(Level.ERROR)

    @property
    def skipped(self) -> dict[str, str]:
        """The parts that could not be checked, with the reasons."""
        return {finding.check: finding.message for finding in self.of_level(Level.UNCHECKED)}

    def passes(self, *, strict: bool = False) -> bool:
        """Whether there is no error; if strict, also no warning, and everything was checked."""
        return not (self.errors or (strict and (self.of_level(Level.WARNING) or self.skipped)))

    def summary(self) -> str:
        counts = ", ".join(_count(len(self.of_level(level)), level) for level in (Level.ERROR, Level.WARNING))
        return counts + (f"; not checked: {', '.join(self.skipped)}" if self.skipped else "")

    def to_json(self, *, strict: bool = False) -> dict[str, JSON]:
        """The report for programs. `strict`: as in `passes`, whose result is `passed`."""
        return {
            "passed": self.passes(strict=strict),
            "counts": {str(level): len(self.of_level(level)) for level in Level},
            "findings": [finding.to_json() for finding in self.findings],
            "checked": dict(self.checked),
            "figures": dict(self.figures),
        }


def _skips(finding: Finding, part: str) -> bool:
    return finding.level == Level.UNCHECKED and finding.check == part


def _line(message: str) -> str:
    return text(" ".join(message.split()))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
