"""Play a suite's environments, each in a process of its own: `worker SUITE FOLDER SECONDS [NAME...]`.

Runs where the suite is installed. Appends a line for each environment to FOLDER/SUITE.jsonl. An environment with a line
is not played again. With PYTHONHASHSEED=1 only the first episodes are played, into FOLDER/SUITE.hashed.jsonl.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from agentrl import ConfigError, Limits
from agentrl.check import CheckInputs, check
from agentrl.testing import tiny_renderer
from benchmarks.report_card.env import CardConfig, CardEnv, gold
from benchmarks.report_card.environment import Environment, suite_environments, suite_packages
from benchmarks.report_card.probe import HangError, Probe, where

Row: TypeAlias = dict[str, Any]
CHECKS = ("tasks", "lifecycle", "prompt", "players", "state", "determinism", "leaks", "reward", "robustness", "sizes")
"""The checks of `agentrl check` that concern an environment, and not only the code of an Env."""


def row_of(suite: str, environment: Environment, tell: Callable[[str], object]) -> Row:
    """All checks of an environment."""
    probe = Probe(environment, tell)
    row: Row = {"name": environment.name, "rules": environment.rules or environment.name}
    try:
        probe.run()
    except (Exception, HangError) as exc:  # noqa: BLE001 - any code may run in there
        if not probe.figures:
            return {**row, "excluded": f"{where(exc)}"}
        probe.findings[f"crash {type(exc).__name__}"] = where(exc)
    row |= {"findings": probe.findings, "figures": probe.figures}
    if environment.checked and "excluded" not in row:
        tell("agentrl check")
        row["check"] = checked(suite, environment)
    return row


def checked(suite: str, environment: Environment) -> list[str]:
    """The mistakes that `agentrl check` reports."""
    config = {"suite": suite, "name": environment.name}
    tasks = [*CardEnv.tasks(CardConfig.model_validate(config), "train")]
    inputs = CheckInputs(
        env=CardEnv,
        tasks=tasks[:2],
        others=tasks[2:],
        renderer=tiny_renderer(),
        config=config,
        gold=gold if all(task.label is not None for task in tasks[:2]) else None,
        limits=Limits(turns=min(12, environment.turns), close_s=5.0),
        only=CHECKS,
        process=False,
        seconds=6.0,
    )
    try:
        report = asyncio.run(check(inputs))
    except ConfigError as exc:
        return [f"refused: {exc}"]
    return [f"{finding.check}: {finding.level}: {finding.message}"[:400] for finding in report.mistakes]


def first_row(environment: Environment) -> Row:
    """Only the digest of the first episodes."""
    probe = Probe(environment, lambda stage: None)
    return {"name": environment.name, "digest": probe.digest()}


def isolated(call: Callable[[Callable[[str], object]], Row], seconds: float) -> Row:
    """Run a call in a child process. A child that dies, or takes too long, is a finding with the last stage."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(call, reads, writes)
    os.close(writes)
    stage, text, until, late = "begin", b"", time.monotonic() + seconds, False
    while True:
        ready, _, _ = select.select([reads], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            late = True
            break
        part = os.read(reads, 1 << 16)
        if not part:
            break
        text += part
    os.close(reads)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("ROW "):
            return dict(json.loads(line[4:]))
        stage = line
    if late:
        return {"findings": {"hang": f"more than {seconds:g} s, in the stage {stage!r}"}, "figures": {}}
    return {"findings": {"died": f"the process died with {status} in the stage {stage!r}"}, "figures": {}}


def _child(call: Callable[[Callable[[str], object]], Row], reads: int, writes: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        os.close(reads)
        null = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2) if not os.environ.get("AGENTRL_CARD_LOUD") else (0,):
            os.dup2(null, each)
        row = call(lambda stage: os.write(writes, f"{stage}\n".encode()))
        data = f"\nROW {json.dumps(row, default=str)}\n".encode()
        while data:
            data = data[os.write(writes, data) :]
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    suite, folder, seconds, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    hashed = os.environ.get("PYTHONHASHSEED") == "1"
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{suite}{'.hashed' if hashed else ''}.jsonl"
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    environments = [each for each in suite_environments(suite) if each.name not in done]
    versions = {package: version(package) for package in suite_packages(suite)}
    for environment in environments:
        if names and environment.name not in names:
            continue
        began = time.monotonic()
        if hashed:
            row = isolated(lambda tell, each=environment: first_row(each), float(seconds) / 3)
        else:
            row = isolated(lambda tell, each=environment: row_of(suite, each, tell), float(seconds))
        row = {"name": environment.name, "rules": environment.rules or environment.name, **row, "versions": versions}
        row["seconds"] = round(time.monotonic() - began, 1)
        with path.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(suite, environment.name, *row.get("findings", ()), row.get("excluded", ""), row["seconds"], flush=True)


if __name__ == "__main__":
    main()
