"""slime's arguments for a command, from slime's own parser if slime is installed, else from a simple reader."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl._util.findings import Finding, error, unchecked
from agentrl.slime.check.command import TrainCommand
from agentrl.slime.check.flags import Words, misspelt, override, plain

HOSTS = ("slime", "miles")
NO_HOST = "slime is not installed here, nor on PYTHONPATH"
TIMEOUT_S = 300.0
"""The time limit in seconds for importing slime, Megatron and SGLang, and for the checks of their parsers."""
_PARSER = "slime's own parser"
_FUNCTION = re.compile(r"^custom_.*_path$|(function|filter|hook|process|data_source)_path$")
"""A pattern for the names of arguments whose value is the path of a function. Megatron has other arguments that end
with `_path`."""


class Args:
    """Arguments as attributes. An argument that is not set is None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)

    def functions(self) -> Iterator[tuple[str, str]]:
        """(flag, path) for each flag whose value is the path of a function."""
        for name, value in self._values.items():
            if _FUNCTION.search(name) and name != "custom_config_path":
                for path in value if isinstance(value, list) else [value]:
                    if isinstance(path, str) and "/" not in path:
                        yield f"--{name.replace('_', '-')}", path


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    args: Args
    exact: bool = False
    """Whether slime's own parser read the arguments."""
    findings: list[Finding] = field(default_factory=list)


def read(command: TrainCommand, keys: Mapping[str, Any], answer: Mapping[str, Any] | None = None) -> ParsedArguments:
    """Read the arguments. `keys` come from the file of --custom-config-path; slime turns them into arguments. `answer`
    is the report of `ask`, if slime's parser has run already."""
    words = Words(command.words)
    values, findings = plain(words)
    override(values, keys)
    if command.yaml_only:
        return ParsedArguments(Args(values))
    report = _ask(command) if answer is None else answer
    if "args" in report:
        findings = [*misspelt(words, frozenset(report["flags"])), *_strays(findings)]
        if "unfinished" in report:
            findings.append(unchecked("Megatron's own checks", f"they need a GPU ({report['unfinished']})"))
        return ParsedArguments(Args(report["args"]), True, findings)
    if "refused" in report:
        findings.append(error(f"slime refuses the command: {report['refused']}"))
    else:
        findings.append(unchecked(_PARSER, f"{report['absent']}; so Megatron's and SGLang's flags were not read"))
    return ParsedArguments(Args(values), "refused" in report, [*findings, *misspelt(words, None)])


def _strays(findings: list[Finding]) -> list[Finding]:
    """The findings of the simple reader that slime's own parser does not report."""
    return [finding for finding in findings if finding.level == "warning"]


def _ask(command: TrainCommand) -> dict[str, Any]:
    host = host_of(command.path)
    if host is None:
        return {"absent": NO_HOST}
    path = os.pathsep.join(filter(None, (*command.path, os.environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        line = [sys.executable, "-m", f"{__package__}.ask", host, str(report), command.program, *command.words]
        try:
            done = subprocess.run(
                line,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"absent": f"it did not finish within {TIMEOUT_S:g} s"}
        if not report.is_file():
            return {"absent": f"its process ended with {done.returncode}: {_last(done.stderr)}"}
        answer: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return {**answer, "refused": _last(done.stderr)} if answer.get("usage") else answer


def host_of(path: tuple[str, ...]) -> str | None:
    """The name of the installed program, slime or miles. The folders of the command come before installed packages.
    None without both."""
    for folder in path:
        for host in HOSTS:
            if _is_host(Path(folder, host)):
                return host
    for host in HOSTS:
        spec = importlib.util.find_spec(host)
        if spec and any(_is_host(Path(folder)) for folder in spec.submodule_search_locations or ()):
            return host
    return None


def _is_host(package: Path) -> bool:
    """Whether the folder is the package of slime or miles, and not an unrelated package of the same name."""
    return (package / "utils" / "arguments.py").is_file()


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
