"""Tests that never started say nothing about the work; tests that ran do, whatever else was printed."""

import pytest

from agentrl_envs.coding.formats.starting import needs_network, obstacle

NEVER_STARTED = [
    "/tests/test.sh: line 8: uvx: command not found",
    "curl: (6) Could not resolve host: astral.sh\n"
    "/tests/test.sh: line 5: /root/.local/bin/env: No such file or directory",
    "curl: (28) Connection timed out after 300000 milliseconds",
    "/tests/test.sh: 3: pytest: not found",
    "/tests/test.sh: line 3: python3.11: command not found",
    "/usr/bin/python3: No module named pytest",
    "Traceback (most recent call last):\nModuleNotFoundError: No module named 'pytest'",
    "bash: /tests/test.sh: /usr/bin/fish: bad interpreter: No such file or directory",
    "/tests/test.sh: line 2: /tests/run.sh: Permission denied",
    "/tests/test.sh: line 2: /usr/bin/python3: Permission denied",
    "/tests/test.sh: line 2: /opt/venv/bin/pytest: cannot execute: required file not found",
    "/usr/bin/env: ‘python3’: No such file or directory",
    "env: 'node': No such file or directory",
    "timeout: failed to run command 'pytest': No such file or directory",
    "/tests/test.sh: line 4: /opt/venv/bin/activate: No such file or directory",
    "python3: can't open file '/tests/test_outputs.py': [Errno 2] No such file or directory",
    "E: Unable to locate package curl",
    "W: Failed to fetch http://deb.debian.org/x  Temporary failure resolving 'deb.debian.org'",
    "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.pythonhosted.org', port=443)",
    "ERROR: No matching distribution found for pytest==8.4.1",
    "error: Failed to fetch: `https://pypi.org/simple/pytest/`\n  Caused by: dns error: failed to lookup address",
    "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo",
    "go: golang.org/x/mod@v0.1: dial tcp: lookup proxy.golang.org: no such host",
    "\x1b[31mERROR\x1b[0m: Could not resolve host: pypi.org",
    # The tests' own requirement could not be fetched.
    "Could not fetch URL https://pypi.org/simple/requests/\nERROR collecting test_it.py\n"
    "ModuleNotFoundError: No module named 'requests'\n=== 1 error in 0.10s ===",
]  # fmt: skip
STARTED = [
    "",
    "wrong answer",
    "1 failed, 2 passed in 0.10s",
    # Not needed after all: the image has its own runner.
    "curl: (6) Could not resolve host: astral.sh\n=========== 1 failed in 0.05s ===========",
    "/tests/test_outputs.py::test_it FAILED\nE   curl: (6) Could not resolve host: x\n=== 1 failed in 0.5s ===",
    "bash: uvx: command not found\nRan 3 tests in 0.002s\n\nFAILED (failures=1)",
    "test result: FAILED. 0 passed; 1 failed",
    "--- FAIL: TestAdd (0.00s)",
    "1..2\nok 1 - reads\nnot ok 2 - writes",
    # The work is missing or broken.
    "/tests/test.sh: line 2: /app/run.sh: No such file or directory",
    "/tests/test.sh: line 2: /app/run.sh: Permission denied",
    "/tests/test.sh: line 2: greet: command not found",
    "cat: /app/answer.txt: No such file or directory",
    "python3: can't open file '/app/solution.py': [Errno 2] No such file or directory",
    "/app/build.sh: line 3: cargo: command not found",
    "ModuleNotFoundError: No module named 'solution'",
    "curl: (7) Failed to connect to localhost port 8080: Connection refused",
    "curl: (28) Connection timed out: 127.0.0.1:80",
    "E   ModuleNotFoundError: No module named 'solution'\n=== 1 error in 0.10s ===",
]


@pytest.mark.parametrize("log", NEVER_STARTED)
def test_the_line_that_tells_why_tests_never_started(log):
    assert obstacle(log) in log.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert obstacle(log)


@pytest.mark.parametrize("log", STARTED)
def test_tests_that_ran_and_work_that_is_broken_are_no_obstacle(log):
    assert obstacle(log) == ""


def test_a_program_is_missed_only_where_the_script_fetches_with_it():
    log = "/tests/test.sh: line 2: git: command not found"
    assert obstacle(log, "git clone https://example.org/x\n") == log
    assert obstacle(log.replace("git", "wget"), "wget -q https://example.org/x\n")
    assert obstacle(log, "git --version && echo 1 > /logs/verifier/reward.txt\n") == ""


def test_validate_knows_the_same_words():
    assert needs_network("sh: 1: curl: not found\nuvx: command not found") == ["curl", "uvx"]
    assert needs_network("The command '/bin/sh -c apt-get update' returned a non-zero code: 100") == ["apt-get"]
    for log in NEVER_STARTED[1:3]:
        assert needs_network(log)
