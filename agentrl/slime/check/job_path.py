"""Checks for modules that only the shell's PYTHONPATH has. A job submitted to Ray does not get the shell's
environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from agentrl._util.findings import Finding, error, warning
from agentrl.slime.check.setup import Setup


def job_path(setup: Setup) -> Iterator[Finding]:
    """Check that a submitted job can import the Env, the reward and the functions of flags."""
    command = setup.command
    if not command.submitted:
        return
    named = dict(setup.args.functions())
    if setup.config is not None:
        named |= {"env": setup.config.env or "", "reward": setup.config.reward or ""}
    for name, path in named.items():
        package = path.replace(":", ".").partition(".")[0]
        folder = None if ".py" in path else _shell_folder(package, command.path)
        if folder is None:
            continue
        text = (
            f"{name} {path}: {package} is found here by the shell's PYTHONPATH ({folder}), which the job does not get"
        )
        remedy = 'write {"env_vars": {"PYTHONPATH": "' + f"...:{folder}" + '"}} into --runtime-env-json'
        if command.sets_python_path:
            yield error(f"{text}; {remedy}")
        else:
            yield warning(f"{text} unless Ray was started with it; {remedy}")


def _shell_folder(package: str, job: tuple[str, ...]) -> str | None:
    """The folder of the shell's PYTHONPATH that has the package. None if the job has the package, too, or if no folder
    has it."""
    shell = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    holder = next((folder for folder in _without(job, shell) if _has(folder, package)), None)
    if holder is None or any(_has(folder, package) for folder in job):
        return None
    installed = _without(shell, filter(None, sys.path))
    return holder if PathFinder.find_spec(package, installed) is None else None


def _without(excluded: Iterable[str], folders: Iterable[str]) -> list[str]:
    """The folders that are not in `excluded`. Paths are compared after symbolic links are resolved."""
    resolved = {Path(folder).resolve() for folder in excluded}
    return [folder for folder in folders if Path(folder).resolve() not in resolved]


def _has(folder: str, package: str) -> bool:
    return Path(folder, package).is_dir() or Path(folder, f"{package}.py").is_file()
