"""Find out whether tests could start, from the messages of shells, installers and networks about a missing test runner.

A verifier that could not start the test runner does not judge the work, whatever reward the verifier wrote.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from posixpath import basename

from agentrl_envs.coding.formats import shell_words

_FETCHERS = re.compile(r"curl|wget|uvx?|npx?m?|git|pip3?|apt-get|go|cargo")
_RUNNERS = re.compile(
    r"(?:python|pypy|pip|py\.test|pytest|nosetests|tox|nox|uvx?|pipx|poetry|conda|mamba|node|npm|npx|yarn|pnpm|bun"
    r"|deno|jest|vitest|mocha|go|cargo|rustc|java|javac|mvn|gradle|ruby|bundle|rspec|php|phpunit|composer|dotnet|swift"
    r"|julia|Rscript|perl|prove|bats|apt|apt-get|apk|dnf|yum|sh|bash|zsh)[\d.]*"
)
"""Matches the names of programs that run tests, or that install test runners."""
_SCRIPT = r"(?:(?:/tests/\S*|[\w.-]*sh|/(?:usr/)?bin/\w+): (?:line )?(?:\d+: )?)?(?:exec: )?"
"""Matches the beginning of a message of the verifier's script. A script of the agent has a different path."""
_CANNOT_RUN = r"(?:No such file or directory|Permission denied|cannot execute\b.*|Exec format error|required file.*)"
_MISSING = tuple(
    map(
        re.compile,
        (
            rf"{_SCRIPT}(?P<program>[\w.+-]+): (?:command )?not found",
            rf"{_SCRIPT}(?P<program>/\S+): (?:not found|{_CANNOT_RUN})",
            rf"(?:/usr/bin/)?(?:env|timeout|nohup|sudo|xargs|exec)\b.*?(?P<program>[\w.+/-]+)[’'\"]?: "
            rf"(?:command not found|{_CANNOT_RUN})",
        ),
    )
)
_UNSTARTED = re.compile(
    r".*\bNo module named '?(?:_?pytest|nose|tox|pip|pluggy|xdist|pytest_\w+)'?|.*: bad interpreter: .*"
    r"|.*can't open file '/tests/.*|ERROR: (?:file or directory not found|file not found): /tests/.*"
)
_BEFORE = re.compile(r"/tests/.*|.*(?:bin/activate|\.local/bin/env|\.cargo/env|nvm\.sh|conda\.sh)")
"""Matches files that a verifier's script reads or runs before the tests. Installers write these files."""
_NETWORK = re.compile(
    r"[Cc]ould not resolve \w+(?!: localhost)|name resolution|[Nn]ame or service not known|getaddrinfo|\bdns error\b"
    r"|\bEAI_AGAIN\b|\bENOTFOUND\b|Temporary failure resolving|: no such host\b|[Nn]etwork is unreachable"
    r"|No route to host|No matching distribution found|Unable to locate package|Max retries exceeded|Retrying \(Retry\("
    r"|Read ?TimeoutError|Connect ?TimeoutError|TLS handshake timeout|Could not fetch URL|E: Failed to fetch"
    r"|E: Unable to fetch|error sending request for url|[Ff]ailed to (?:fetch|download):? \W?https?:"
    r"|npm (?:ERR!|error) (?:network|code E(?:TIMEDOUT|CONNREFUSED|CONNRESET))|spurious network error"
    r"|curl: \((?:35|56|60)\)|curl: \((?:7|28)\)(?!.*(?:localhost|127\.0\.0\.1|0\.0\.0\.0))"
    r"|unable to resolve host address|Proxy CONNECT aborted|fatal: unable to access 'https?:"
)
_RAN = re.compile(
    r"^(?:=+ )?(?:\d+ \w+(?:, )?)*\d+ (?:passed|failed|skipped|xfailed|xpassed)\b.*\bin [\d.]+ ?s|^\S+::\S+ [A-Z]{4,}"
    r"|^Ran [1-9]\d* tests? in |^test result: (?:ok|FAILED)|^\s*--- (?:FAIL|PASS): |^Tests: .*\d+ total"
    r"|^\s*\d+ (?:passing|failing)\b|^(?:not )?ok \d+\b|^\d+ examples?, \d+ failures?|Tests run: [1-9]",
    re.MULTILINE,
)
"""Matches the output of a test runner after a test ran: pytest, unittest, cargo, go, jest, mocha, TAP, rspec, Maven."""
_NOT_LOADED = re.compile(r"^(?:=+ )?(?:\d+ warnings?, )?\d+ errors?(?:, \d+ warnings?)? in [\d.]+ ?s", re.MULTILINE)
"""Matches pytest's last line if no test could be loaded."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def obstacle(log: str, script: str = "") -> str:
    """The line of a log that shows why the tests never started. Empty if the tests ran, or without such a line.

    `script` is the script that ran the tests. A program counts as missing also if the script only downloads
    with the program.
    """
    log = _COLOURS.sub("", log)
    if _RAN.search(log):
        return ""
    lines = [line.strip() for line in log.splitlines()]
    offline = next((line for line in lines if _NETWORK.search(line)), "")
    if _NOT_LOADED.search(log):  # pytest itself started: the work may be to blame, unless the network is
        return offline
    fetching = {command.split()[0] for command in shell_words.fetches(script)}
    return next((line for line in lines if _is_missing(line, fetching)), offline)


def needs_network(log: str) -> list[str]:
    """The programs that failed for lack of a network, without repeats, in the output of a build or a script."""
    built = re.search(r"The command '(.*?)' returned a non-zero code", log, re.DOTALL)
    if built is not None:
        return shell_words.fetches(built[1].removeprefix("/bin/sh -c "))
    missing = re.compile(rf"\b({_FETCHERS.pattern}): (?:command )?not found|{_NETWORK.pattern}")
    return list(dict.fromkeys(match[1] or match[0] for match in missing.finditer(log)))


def _is_missing(line: str, fetching: Collection[str]) -> bool:
    """Whether a line shows that a test runner, or a program that downloads the runner, is missing."""
    if _UNSTARTED.fullmatch(line):
        return True
    programs = (match["program"] for pattern in _MISSING if (match := pattern.fullmatch(line)))
    return any(
        _RUNNERS.fullmatch(basename(program)) or basename(program) in fetching or _BEFORE.fullmatch(program)
        for program in programs
    )
