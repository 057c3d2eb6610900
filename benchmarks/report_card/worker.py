"""A pass over a suite's environments, each in a process of its own: `worker SUITE FOLDER PASS [NAME...]`.

Runs where the suite is installed. Appends a line for each environment to FOLDER/SUITE.PASS.jsonl. An environment with a
line is not played again.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from agentrl import Limits
from agentrl.check import CheckInputs, check
from agentrl.render.base import Renderer
from agentrl.testing import tiny_renderer
from benchmarks.report_card.env import CardConfig, CardEnv, gold
from benchmarks.report_card.environment import Environment, rows, suite_environments, suite_packages
from benchmarks.report_card.probe import HangError, PlayerError, Probe, Tell, where

Row: TypeAlias = dict[str, Any]
CPU_S = 300
"""Seconds of a processor for an environment."""
WALL_S = 600.0
CHECKS = ("tasks", "lifecycle", "prompt", "players", "state", "determinism", "leaks", "reward", "robustness", "sizes")
"""The checks of `agentrl check` that concern an environment, and not only the code of an Env."""


def probed(suite: str, environment: Environment, tell: Tell) -> Row:
    """Play by the suite's API. The row of an environment that cannot be played has the reason in `excluded`."""
    probe = Probe(environment, tell)
    try:
        probe.run()
    except (Exception, HangError, PlayerError, SystemExit) as exc:  # noqa: BLE001 - any code may run in there
        if not probe.figures:
            return {"excluded": where(exc)}
        probe.findings[f"crash {type(exc).__name__}"] = where(exc)
    turns = [(played.seed, played.texts) for played in probe.first]
    return {"findings": probe.findings, "figures": probe.figures, "turns": turns}


def hashed(suite: str, environment: Environment, tell: Tell, turns: Sequence[Any] = ()) -> Row:
    """Play only the first episodes, in a process with another PYTHONHASHSEED. `turns` are those of the probe."""
    return {"digest": Probe(environment, tell, turns).digest()}


def checked(suite: str, environment: Environment, tell: Tell) -> Row:
    """The mistakes that `agentrl check` reports."""
    tell("agentrl check")
    try:
        report = asyncio.run(check(_inputs(suite, environment)))
    except Exception as exc:  # noqa: BLE001 - any code may run in there
        return {"excluded": where(exc)}
    mistakes = [f"{finding.check}: {finding.level}: {finding.message}"[:400] for finding in report.mistakes]
    return {"check": mistakes, "played": report.checked.get("constant answers", "")}


def _inputs(suite: str, environment: Environment) -> CheckInputs:
    config = {"suite": suite, "name": environment.name}
    tasks = [*CardEnv.tasks(CardConfig.model_validate(config), "train")]
    return CheckInputs(
        env=CardEnv,
        tasks=tasks[:2],
        others=tasks[2:],
        renderer=_renderer(),
        config=config,
        gold=gold if all(task.label is not None for task in tasks[:2]) else None,
        limits=Limits(turns=min(12, environment.turns), close_s=5.0),
        only=CHECKS,
        process=False,
        seconds=20.0,
    )


PASSES: dict[str, Callable[..., Row]] = {"probe": probed, "hashed": hashed, "check": checked}


@cache
def _renderer() -> Renderer:
    """The renderer, opened once, before the processes of the environments are forked."""
    return tiny_renderer()


def isolated(call: Callable[[Tell], Row], seconds: float) -> Row:
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


def _child(call: Callable[[Tell], Row], reads: int, writes: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
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
    suite, folder, which, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    path = Path(folder) / f"{suite}.{which}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done, probes = rows(path), rows(path.with_name(f"{suite}.probe.jsonl"))
    environments = [each for each in suite_environments(suite) if each.name not in done]
    if which == "check":
        _renderer()
    versions = {package: version(package) for package in suite_packages(suite)}
    for environment in environments:
        if names and environment.name not in names:
            continue
        began = os.times()
        call = partial(PASSES[which], suite, environment)
        if which == "hashed":  # the probe's turns: the random player of a suite may ignore its generator
            call = partial(call, turns=probes.get(environment.name, {}).get("turns", ()))
        row = isolated(call, WALL_S)
        used = os.times()
        cpu = used.children_user + used.children_system - began.children_user - began.children_system
        row = {"name": environment.name, "rules": environment.rules or environment.name, **row, "versions": versions}
        with path.open("a") as lines:
            lines.write(json.dumps({**row, "cpu_s": round(cpu, 2)}) + "\n")
        words = [*row.get("findings", ()), row.get("excluded", ""), f"{cpu:.1f}"]
        print(suite, which, environment.name, *words, flush=True)


if __name__ == "__main__":
    main()
