"""Read the log of a test run: the status of each test, as pytest, unittest and sympy print statuses.

The tests print, and the code under test may print lines that look like results. So the worst printed status of a test
counts, and `ParsedLog.doubts` lists suspicious parts of the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["PASSED", "XFAIL", "SKIPPED", "FAILED", "ERROR"]

BAD: tuple[Status, ...] = ("FAILED", "ERROR")
_WORST: Mapping[Status, int] = {"PASSED": 0, "XFAIL": 1, "SKIPPED": 2, "FAILED": 3, "ERROR": 4}
_WORDS: Mapping[str, Status] = {"PASSED": "PASSED", "XPASS": "PASSED", "XFAIL": "XFAIL", "SKIPPED": "SKIPPED",
                                "FAILED": "FAILED", "ERROR": "ERROR"}  # fmt: skip
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[\d+m|[\x00-\x08\x0b-\x1f]")


@dataclass(slots=True)
class ParsedLog:
    """The tests of a log, with their status."""

    statuses: dict[str, Status] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    """Why the log cannot be a true record of a single test run."""
    ran: bool = False
    """Whether the runner reported that tests ran, or could not be loaded."""

    def add(self, test: str, status: Status) -> None:
        """Record the status of a test; the worst status counts."""
        earlier = self.statuses.get(test)
        if earlier is None or _WORST[status] > _WORST[earlier]:
            self.statuses[test] = status


def read_log(log: str, style: str) -> ParsedLog:
    """Read the part of a log from the start of the tests to their end. `style` is a name in STYLES."""
    return STYLES[style](log)


# -- pytest --

_HEADING = re.compile(r"=+ (?:short )?test summary info(?:rmation)? =+$", re.IGNORECASE)
_TOTAL = re.compile(r"=* ?((?:\d+ [a-z]+(?:, )?)+)(?:,? ?in [\d.]+ ?s(?:econds)?)?(?: \([\d:]+\))? ?=*$")
_COUNT = re.compile(r"(\d+) ([a-z]+)")
_SKIP_COUNT = re.compile(r"\[\d+\]$")
_VERBOSE = re.compile(r"(\S.*?)\s+(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?:\s+\(.*\))?(?:\s+\[\s*\d+%\])?$")
_COUNTED: Mapping[str, str] = {"passed": "PASSED", "failed": "FAILED"}


def _pytest_itself(log: str) -> ParsedLog:
    """Read a log of pytest's own tests. The tests run pytest and print the output, so only the last summary
    counts."""
    lines = log.splitlines()
    headings = [number for number, line in enumerate(lines) if _HEADING.fullmatch(_COLOURS.sub("", line).rstrip())]
    return _pytest("\n".join(lines[headings[-1] :])) if headings else _pytest(log)


def _pytest(log: str) -> ParsedLog:
    parsed = ParsedLog()
    lines = [_COLOURS.sub("", line).rstrip() for line in log.splitlines()]
    for line in lines:
        if named := _pytest_line(line):
            parsed.add(*named)
    totals = [counts for line in lines if (counts := _totals(line))]
    parsed.ran = bool(totals) or any(line.startswith("collected ") for line in lines)
    parsed.doubts = list(_pytest_doubts(lines, totals))
    return parsed


def _pytest_line(line: str) -> tuple[str, Status] | None:
    """Read a line of the summary (`PASSED test`) or of a verbose run (`test PASSED`)."""
    word, _, rest = line.partition(" ")
    if word in _WORDS:
        rest = rest.strip()
        if word in ("FAILED", "ERROR"):
            rest = rest.split(" - ", 1)[0]
        if not rest or (word == "SKIPPED" and _SKIP_COUNT.match(rest.split()[0])):
            return None
        return rest, _WORDS[word]
    match = _VERBOSE.match(line) if line.endswith(("]", ")", *_WORDS)) else None
    return (match[1], _WORDS[match[2]]) if match and "::" in match[1] else None


def _totals(line: str) -> Counter[str]:
    """The counts of pytest's last line: `== 1 failed, 2 passed in 0.10s ==`."""
    match = _TOTAL.fullmatch(line)
    counts = Counter({word: int(count) for count, word in _COUNT.findall(match[1])}) if match else Counter[str]()
    outcomes = {"passed", "failed", "skipped", "error", "errors", "xfailed", "xpassed", "deselected"}
    return counts if outcomes & set(counts) else Counter()


def _pytest_doubts(lines: list[str], totals: list[Counter[str]]) -> Iterator[str]:
    """Reasons to doubt a pytest log: it must have a single summary, with as many tests as the last line counts."""
    headings = [number for number, line in enumerate(lines) if _HEADING.fullmatch(line)]
    if len(headings) > 1:
        yield f"it has {len(headings)} summaries"
    if len(totals) > 1:
        yield f"it has {len(totals)} last lines"
    if len(headings) != 1 or len(totals) != 1:
        return
    listed = Counter(line.partition(" ")[0] for line in lines[headings[0] :] if _pytest_line(line))
    for word, status in _COUNTED.items():
        if listed[status] > totals[0][word]:
            yield f"it lists {listed[status]} tests as {status}, but counts {totals[0][word]}"


# -- unittest, and Django's runner --

_RESULT = re.compile(r"(.*?) \.\.\. +(.*)$")
_RAN = re.compile(r"Ran (\d+) tests? in [\d.]+s$")
_PROBLEM = re.compile(r"(FAIL|ERROR): (.+)$")
_ENDINGS: tuple[tuple[str, Status], ...] = (
    ("ok", "PASSED"),
    ("FAIL", "FAILED"),
    ("ERROR", "ERROR"),
    ("expected failure", "XFAIL"),
    ("unexpected success", "FAILED"),
)


def _unittest(log: str) -> ParsedLog:
    parsed = ParsedLog()
    waiting = ""
    lines = [_COLOURS.sub("", line).strip() for line in log.splitlines()]
    for number, line in enumerate(lines):
        if problem := _PROBLEM.match(line):
            _note_problem(parsed, problem, lines[number + 1] if number + 1 < len(lines) else "")
            continue
        match = _RESULT.match(line)
        if match and _is_migration(match[1]):
            continue
        if match:
            waiting = match[1]
        if status := _ending(match[2] if match else line, alone=match is None):
            if waiting:
                parsed.add(waiting, status)
            waiting = ""
    ran = [int(match[1]) for line in lines if (match := _RAN.match(line))]
    parsed.ran = bool(ran)
    if len(ran) > 1:
        parsed.doubts.append(f"it reports {len(ran)} times how many tests ran")
    return parsed


def _is_migration(text: str) -> bool:
    return text.startswith("Applying ")


def _ending(text: str, *, alone: bool) -> Status | None:
    """The status at the end of a test's line, or at the beginning of a later line, if the test printed in between."""
    if alone:
        return "PASSED" if text == "ok" or text.startswith("ok ") else None
    if text.startswith("skipped"):
        return "SKIPPED"
    return next((status for word, status in _ENDINGS if text.rstrip() in (word, word.upper())), None)


def _note_problem(parsed: ParsedLog, problem: re.Match[str], below: str) -> None:
    """Record a test's block in the report under the test's name, and under the first line of the docstring, if any."""
    status: Status = "FAILED" if problem[1] == "FAIL" else "ERROR"
    parsed.add(problem[2], status)
    parsed.add(problem[2].split()[0], status)
    if below and not below.startswith("---"):
        parsed.add(below, status)


# -- sympy --

_BLOCK = re.compile(r"_+ (\S+\.py):(\S+) _+$")
_SYMPY_TOTAL = re.compile(r"=+ tests finished: (.*) =+$")
_MARKS: Mapping[str, Status] = {
    "ok": "PASSED",
    "F": "FAILED",
    "E": "ERROR",
    "f": "XFAIL",
    "s": "SKIPPED",
    "X": "PASSED",
}


def _sympy(log: str) -> ParsedLog:
    parsed = ParsedLog()
    totals = []
    for line in (_COLOURS.sub("", line).strip() for line in log.splitlines()):
        words = line.split()
        if block := _BLOCK.match(line):
            parsed.add(f"{block[1]}:{block[2]}", "FAILED")
        elif line.startswith("test_") and len(words) > 1 and words[-1] in _MARKS:
            parsed.add(words[0], _MARKS[words[-1]])
        elif total := _SYMPY_TOTAL.match(line):
            totals.append(total[1])
    parsed.ran = bool(totals)
    if len(totals) > 1:
        parsed.doubts.append(f"it has {len(totals)} last lines")
    return parsed


STYLES: Mapping[str, Callable[[str], ParsedLog]] = {
    "pytest": _pytest,
    "pytest itself": _pytest_itself,
    "unittest": _unittest,
    "sympy": _sympy,
}
