"""The findings of the checks, the extent of each check, and the omissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from agentrl.check.places import Place
from agentrl.plain import text
from agentrl.types import JSON

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake, and the line."""

    severity: Severity
    check: str
    place: Place
    message: str
    remedy: str
    play: Mapping[str, JSON] | None = None
    """The episode that shows the mistake: player, task, turns, turn_limit, reward. None if no single episode does."""

    def __str__(self) -> str:
        return f"{self.place}  {self.severity}: {self.message}; {self.remedy} [{self.check}]"


@dataclass(slots=True)
class Report:
    """The result of all checks of an Env."""

    findings: list[Finding] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    """Check -> the extent of the check."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Check -> why the check, or a part, was left out."""

    def error(
        self, check: str, place: Place, message: str, remedy: str, play: Mapping[str, JSON] | None = None
    ) -> None:
        self._add(Finding("error", check, place, _line(message), remedy, play))

    def warn(self, check: str, place: Place, message: str, remedy: str, play: Mapping[str, JSON] | None = None) -> None:
        self._add(Finding("warning", check, place, _line(message), remedy, play))

    def _add(self, finding: Finding) -> None:
        """Store a finding, unless the same check already has a finding for the place: the first finding is the
        clearest."""
        if not any((earlier.check, earlier.place) == (finding.check, finding.place) for earlier in self.findings):
            self.findings.append(finding)

    def has(self, *checks: str) -> bool:
        return any(finding.check in checks for finding in self.findings)

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    def to_json(self) -> dict[str, JSON]:
        rows = [
            {**asdict(finding), "place": None, "file": finding.place.file, "line": finding.place.line}
            for finding in self.findings
        ]
        for row in rows:
            del row["place"]
        return {"findings": rows, "checked": dict(self.checked), "skipped": dict(self.skipped)}


def _line(message: str) -> str:
    return text(" ".join(message.split()))
