from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

# No test, nor a process that it starts, asks the real Hub: huggingface_hub reads these when it is imported.
os.environ.update(HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")

import pytest

from agentrl.models import load_tokenizer
from agentrl.render import load_renderer

HERE = Path(__file__).parent
REQUIRED = os.environ.get("AGENTRL_REQUIRE", "").split(",")
"""What must be here: its tests fail where they would be skipped."""
SLOW = (
    "check",
    "cli",
    "engine",
    "envs",
    "examples",
    "gateway",
    "hostile",
    "parity",
    "rehearse",
    "sandbox",
    "slime",
    "train",
    "view",
    "workers",
)
"""Folders whose tests load a model, start servers or processes, or wait for deadlines."""


CASES = 2
"""How many cases of one test `make test` runs."""
PASSED = os.environ.get("AGENTRL_PASSED")
"""A file that names the tests which passed in earlier steps of CI. They are skipped."""


def pytest_addoption(parser):
    parser.addoption(
        "--part",
        choices=("all", "usual", "rest"),
        default="all",
        help=f"usual: no `thorough` test, and {CASES} cases of each other one; rest: what usual leaves out",
    )
    parser.addoption("--cases", type=int, help="play at most so many cases of each test, spread over those of the part")


def pytest_collection_modifyitems(config, items):
    """Mark by place what `make quick` leaves out, skip what needs Ray where it is not installed, and keep the part that
    is asked for."""
    has_ray = find_spec("ray") is not None
    if not has_ray and "ray" in REQUIRED:
        raise pytest.UsageError("AGENTRL_REQUIRE names ray, which is not installed")
    for item in items:
        folders = item.path.relative_to(HERE).parts[:-1] if item.path.is_relative_to(HERE) else ()
        if folders and folders[0] in SLOW:
            item.add_marker(pytest.mark.slow)
        if "docker" in item.nodeid.partition("/")[2]:
            item.add_marker(pytest.mark.docker)
        if item.get_closest_marker("ray"):
            if not has_ray:
                item.add_marker(pytest.mark.skip(reason="could not import 'ray'"))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(600))  # each worker imports Ray: half a minute on a busy machine
    items[:] = chosen(items, config.getoption("--part"), config.getoption("--cases"))
    skip_passed(items)


def chosen(items, part, most):
    """The items of a part, and of these at most so many cases of each test."""
    if part != "all":
        usual = set(some_cases([item for item in items if item.get_closest_marker("thorough") is None], CASES))
        items = [item for item in items if (item in usual) == (part == "usual")]
    if most is not None:
        kept = set(some_cases(items, most))
        items = [item for item in items if item in kept]
    return items


def skip_passed(items):
    """A step of CI whose tests all passed before is a success so. Without items pytest would count it as a failure."""
    if PASSED and (file := Path(PASSED)).exists():
        passed = set(file.read_text(encoding="utf-8").splitlines())
        for item in items:
            if item.nodeid in passed:
                item.add_marker(pytest.mark.skip(reason="passed in an earlier step of CI"))


def some_cases(items, most):
    """Of each test at most so many cases, spread evenly over all of them."""
    tests = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        count = min(most, len(cases))
        yield from (cases[number * len(cases) // count] for number in range(count))


def pytest_sessionfinish(session):
    """Add what passed to the file of CI. With several processes only the one that hears of all tests has reports."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if PASSED and reporter is not None and not hasattr(session.config, "workerinput"):
        passed, *others = (
            {report.nodeid for report in reporter.stats.get(kind, ())} for kind in ("passed", "failed", "error")
        )
        with Path(PASSED).open("a", encoding="utf-8") as file:
            file.writelines(f"{nodeid}\n" for nodeid in sorted(passed.difference(*others)))


def pytest_configure():
    """A shell that runs the tests in its background has them ignore SIGINT; some send it to themselves."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """What is imported and collected lives to the end: tests that call `gc.collect` need not walk it each time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter, config):
    """Why tests were skipped: one line a reason, not one a test. (pytest's own -rs names each line of code.)"""
    if config.getoption("--part") == "usual":
        terminalreporter.section("left for `make test-rest`")
        terminalreporter.write_line(f"what takes long, and all but {CASES} cases of each test")
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        terminalreporter.section("not run here")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:4} {reason}")


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer("tiny")


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return load_renderer(tokenizer)


@pytest.fixture(scope="session")
def ray_address():
    """The address of a Ray cluster: one for all tests, because it takes longer to start than most of them run."""
    command = [sys.executable, str(HERE / "workers/ray_head.py")]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as head:
        try:
            address = head.stdout.readline().strip()
            assert address, "the Ray cluster did not start"
            yield address
            head.stdin.close()
            head.wait(60)
        finally:
            head.kill()  # no time limit of a test holds here after a failure
