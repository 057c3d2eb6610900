"""Whether a recorded log shows that an instance is resolved.

A printed "PASSED" alone proves no success. A log is believed only if each mark occurs once, if the exit code of the
tests agrees with the output, and if pytest's count agrees, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl_envs.coding.formats.starting import obstacle
from agentrl_envs.coding.formats.swebench.instance import Instance
from agentrl_envs.coding.formats.swebench.logs import BAD, ParsedLog, Status, read_log

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code"
"""A mark before the exit code of the tests, in the output of SWE-bench's evaluation scripts."""

_FAILED_BEFORE = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_ERROR = re.compile(r"^(?:E  |\w*Error\b|Traceback )", re.MULTILINE)
"""Matches errors of Python or pytest, which occur if the code under test cannot be loaded."""
_CODE = re.compile(rf"^{EXIT_CODE}: *(-?\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """The result of an instance, from a log."""

    resolved: bool
    reason: str
    """Why the instance is unresolved; "" if resolved."""
    broken: bool = False
    """Whether the log says nothing about the agent's code: the tests never ran, or the log is incomplete."""
    fail_to_pass: Mapping[str, bool] = field(default_factory=dict)
    pass_to_pass: Mapping[str, bool] = field(default_factory=dict)

    def share(self) -> dict[str, float]:
        """Name of the list (fail_to_pass or pass_to_pass) -> the share of its tests with the right status."""
        lists = {"fail_to_pass": self.fail_to_pass, "pass_to_pass": self.pass_to_pass}
        return {name: sum(tests.values()) / len(tests) for name, tests in lists.items() if tests}


@dataclass(frozen=True, slots=True)
class Result:
    """How a test ended, as the pytest plugin recorded in a separate file."""

    ending: str
    """How the test ended: passed, raised, xfailed or skipped."""
    marked: bool = False
    """Whether the test was marked as an expected failure before any test ran."""


def grade_log(
    instance: Instance, log: str, *, exit_code: int | None = None, results: Mapping[str, Result] | None = None
) -> InstanceResult:
    """Grade the log of an evaluation script. `exit_code` is the test command's, unless the log records the code.

    `results`: test id -> result. With `results`, a test that the fix repairs has passed only if the result agrees.
    """
    if failure := next((mark for mark in _FAILED_BEFORE if mark in log), None):
        return InstanceResult(False, f"the log reports: {failure.lstrip('> ')}")
    counted = {mark: log.count(mark) for mark in (START, END)}
    if not all(counted.values()):
        return InstanceResult(
            False, "the log has no test output: the marks of its beginning and end are not both there", broken=True
        )
    if max(counted.values()) > 1:
        return InstanceResult(False, "the log has a mark of the test output twice: something printed it")
    between, _, rest = log.partition(START)[2].partition(END)
    reading = read_log(between, instance.style)
    if not reading.statuses:  # some hosts record stdout and stderr one after the other, and the marks with the latter
        reading = read_log(log, instance.style)
    recorded = [int(code) for code in _CODE.findall(rest)]
    if doubt := _doubt(reading, recorded[-1] if recorded else exit_code):
        ran = reading.statuses or reading.ran or results or (_ERROR.search(log) and not obstacle(log))
        return InstanceResult(False, doubt, broken=not ran)
    return _report(instance, reading.statuses, results)


def _doubt(reading: ParsedLog, exit_code: int | None) -> str:
    """Why a log is not believed; "" for a credible log."""
    if not reading.statuses:
        return "the log names no test"
    if exit_code and not any(status in BAD for status in reading.statuses.values()):
        return f"the tests exited with {exit_code}, but every one that the log names passed"
    return f"the log is not that of one test run: {'; '.join(reading.doubts)}" if reading.doubts else ""


def _report(instance: Instance, statuses: Mapping[str, Status], results: Mapping[str, Result] | None) -> InstanceResult:
    names = _Names(statuses)
    repaired = {
        test: names.status(test) in ("PASSED", "XFAIL") and (results is None or _agrees(names, test, results))
        for test in instance.fail_to_pass
    }
    unbroken = {test: names.status(test) in ("PASSED", "XFAIL", "SKIPPED") for test in instance.pass_to_pass}
    failed = [test for test, good in (*repaired.items(), *unbroken.items()) if not good]
    reason = f"{len(failed)} of {len(repaired) + len(unbroken)} tests did not pass, first {failed[0]}" if failed else ""
    return InstanceResult(not failed, reason, fail_to_pass=repaired, pass_to_pass=unbroken)


def _agrees(names: _Names, test: str, results: Mapping[str, Result]) -> bool:
    """Whether a test with the right status in the log has the same status in `results`. An expected failure must be
    marked in the test's file, because the code under test could declare expected failures, too."""
    matches = [result for name, result in results.items() if _same(name, test)]
    if names.status(test) == "XFAIL":
        return bool(matches) and all(result.marked for result in matches)
    return bool(matches) and all(result.ending == "passed" for result in matches)


def _same(name: str, test: str) -> bool:
    """Whether two ids name the same test: ids may begin in different folders, or be cut off at a space."""
    name, test = _plain(name), _plain(test)
    if test.count("[") > test.count("]"):
        return name.startswith(test)
    return name == test or name.endswith(f"/{test}") or test.endswith(f"/{name}")


class _Names:
    """Finds a test of an instance among the names in a log."""

    def __init__(self, statuses: Mapping[str, Status]) -> None:
        self._statuses = statuses
        self._plain: dict[str, list[str]] = {}
        for name in statuses:
            self._plain.setdefault(_plain(name), []).append(name)

    def status(self, test: str) -> Status | None:
        """The status of a test. None if the log does not name the test, or has several matching names with different
        statuses."""
        if test in self._statuses:
            return self._statuses[test]
        matches = self._plain.get(_plain(test), [])
        if not matches and test.count("[") > test.count("]"):  # data sets hold names that were cut at a blank
            matches = [name for name in self._statuses if name.startswith(test)]
        statuses = {self._statuses[name] for name in matches}
        if len(statuses) > 1 and statuses <= {"PASSED", "XFAIL"}:
            return "PASSED"
        return statuses.pop() if len(statuses) == 1 else None


def _plain(name: str) -> str:
    """A name without the parts that differ between machines: the folders of a file parameter, and colours."""
    name = name.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
    match = re.fullmatch(r"(.*?)\[(/[^/*].*)\]", name)
    return f"{match[1]}[/{match[2].rsplit('/', 1)[-1]}]" if match else name
