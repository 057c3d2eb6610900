"""Scripted players that validate a coding environment: gold scores 1, noop 0."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator
from pathlib import Path
from shlex import quote

from agentrl import ConfigError, Task
from agentrl.engine.scripted import Turn
from agentrl.sandbox import FileContent
from agentrl.testing import call
from agentrl_envs.coding.problem import Solution, load_problem

_PIECE = 60_000
"""The most characters of a file that a single command writes."""


def gold(task: Task) -> Generator[Turn, str, None]:
    """Applies the solution of each step by `bash`, then submits. Raises ConfigError for a task without a solution."""
    for step in load_problem(task).steps:
        if step.gold is None:
            raise ConfigError(f"task {task.id!r} has no solution, so no player can show that it can be solved")
        for command in commands(step.gold):
            yield call("bash", command=command)
        yield call("submit")


def noop(task: Task) -> Generator[Turn, str, None]:
    """Submits without any work."""
    for _ in load_problem(task).steps:
        yield call("submit")


def commands(gold: Solution) -> Iterator[str]:
    """Shell commands that apply a solution."""
    for path, content in gold.files.items():
        if isinstance(content, Path) and content.is_dir():
            for file in sorted(file for file in content.rglob("*") if file.is_file()):
                yield from _written(f"{path}/{file.relative_to(content)}", file)
        else:
            yield from _written(path, content)
    if gold.command:
        exports = "".join(f"{name}={quote(value)} " for name, value in gold.env.items())
        yield f"{exports}bash -c {quote(gold.command)}"


def _written(path: str, content: FileContent) -> Iterator[str]:
    data = content.read_bytes() if isinstance(content, Path) else content
    coded = base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
    yield f'mkdir -p "$(dirname {quote(path)})" && : > {quote(path)}'
    for offset in range(0, len(coded), _PIECE):
        yield f"base64 -d >> {quote(path)} <<< {coded[offset : offset + _PIECE]}"
    if isinstance(content, Path) and content.stat().st_mode & 0o100:
        yield f"chmod +x {quote(path)}"
