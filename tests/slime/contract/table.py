"""The table of outcomes.md: what becomes of each path, under each host.

AGENTRL_CONTRACT_TABLE=tests/slime/contract/outcomes.md makes a run of the suite write the columns of its hosts. The
columns of other hosts stay as they are, so several runs make one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- contract: begin -->", "<!-- contract: end -->"
_OK, _FAILED = "ok", "FAILED"


class Table:
    """Paths, and for each the outcome by host. Rows and columns keep their places; new ones come last."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._outcomes: dict[str, dict[str, str]] = {}

    def name(self, host: str, label: str) -> None:
        self._labels[host] = label

    def note(self, item: Any, report: Any) -> None:
        """A path is ok if a test of it passed and none failed; skipped, if all were, for the reason given."""
        mark, spec = item.get_closest_marker("path"), getattr(item, "callspec", None)
        host = spec.params.get("host") if spec else None
        if mark is None or host is None or (report.when != "call" and report.passed):
            return
        cells = self._outcomes.setdefault(mark.args[0], {})
        if report.failed:
            cells[host] = _FAILED
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            cells.setdefault(host, reason.removeprefix("Skipped: "))
        elif cells.get(host) != _FAILED:
            cells[host] = _OK

    def write(self, file: Path) -> None:
        """Put this run's columns into the table that stands in the file."""
        before, rest = file.read_text(encoding="utf-8").split(BEGIN)
        old, after = rest.split(END)
        columns = parse(old)
        paths = [path for column in columns.values() for path in column]
        for host, label in self._labels.items():
            columns[label] = {path: cells[host] for path, cells in self._outcomes.items() if host in cells}
        paths = list(dict.fromkeys([*paths, *self._outcomes]))
        file.write_text(f"{before}{BEGIN}\n{render(paths, columns)}{END}{after}", encoding="utf-8")


def parse(table: str) -> dict[str, dict[str, str]]:
    """The outcomes by column heading and path."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n") if line[:1] == "|"]
    if not lines:
        return {}
    heading, _, *body = lines
    return {label: {row[0]: row[i] for row in body if row[i]} for i, label in enumerate(heading) if i > 0}


def render(paths: list[str], columns: Mapping[str, Mapping[str, str]]) -> str:
    lines = [["path", *columns], ["---"] * (len(columns) + 1)]
    lines += [[path, *(column.get(path, "") for column in columns.values())] for path in paths]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
