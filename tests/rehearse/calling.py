"""`agentrl slime rehearse` as a process, and the environment in which a rehearsal's programs run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.rehearse.standins import ENGINE, SITE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (
    sys.executable,
    "-c",
    "import typer; from agentrl.rehearse.command import rehearse; typer.run(rehearse)",
)
"""The command, also in a checkout whose entry points are not installed."""


class Rehearsed(NamedTuple):
    code: int
    report: Any
    """None if there is no JSON on stdout."""
    seconds: float
    output: str
    """The ends of stdout and stderr."""


def rehearse(
    arguments: Sequence[str],
    out: Path,
    prefix: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> Rehearsed:
    """Run the command. Its stderr is written beside `out`."""
    began = time.monotonic()
    words = [*prefix, *COMMAND, "--json", "--out", str(out), *arguments]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    out.with_name(f"{out.name}.stderr").write_text(done.stderr, encoding="utf-8")
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = None
    return Rehearsed(done.returncode, report, time.monotonic() - began, done.stdout[-400:] + done.stderr[-3000:])


def hooked(folder: Path, *path: Path | str, **variables: str) -> dict[str, str]:
    """The environment of a program under a rehearsal's hooks. `path`: folders for PYTHONPATH, behind the stand-ins."""
    folders = [SITE, ENGINE, ROOT, ROOT / "envs", ROOT / "sandbox", *path]
    return {
        **os.environ,
        "AGENTRL_REHEARSAL": str(folder),
        "SLIME_ACCELERATOR": "cpu",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        **variables,
    }


def example() -> Any:
    """The module examples/slime/rehearse.py."""
    spec = importlib.util.spec_from_file_location("rehearse_example", ROOT / "examples/slime/rehearse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
