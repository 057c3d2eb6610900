"""A plugin of pytest that records the true end of each test, whatever a report or a printed line claims.

The plugin is loaded before the code under test. For each test a line holds the id, whether the test was marked to fail,
and the ending.
"""

# For every Python since 3.5, as images have them: hence the quotes.
import json
import os
from typing import Any

import pytest

RESULTS = "@RESULTS@"
MARKED = set()  # type: set[str]


def note(*words: str) -> None:
    with open(RESULTS, "a") as file:
        file.write(json.dumps(words) + "\n")


def ending(item: Any, error: Any) -> str:
    if error is None:  # unittest's cases keep what they raised
        return "raised" if getattr(item, "_excinfo", None) else "passed"
    return {"XFailed": "xfailed", "Skipped": "skipped"}.get(error[0].__name__, "raised")


def pytest_collection_finish(session: Any) -> None:
    for item in session.items:
        if getattr(item, "get_closest_marker", item.keywords.get)("xfail"):
            MARKED.add(item.nodeid)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: Any) -> Any:
    outcome = yield
    marked = "marked" if item.nodeid in MARKED else ""
    note(item.nodeid, marked, ending(item, outcome.excinfo))


# Runs of pytest that tests start are not those that are graded.
os.environ["PYTEST_ADDOPTS"] = os.environ.get("PYTEST_ADDOPTS", "").replace("-p agentrl_results", "", 1)
note("", "", "begun")
