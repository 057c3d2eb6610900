"""The report card of RL environments: what is wrong with the environments of the package registry.

    python -m benchmarks.report_card --out FOLDER           # all suites: 40 minutes of a core, 3 GB in .cache
    python -m benchmarks.report_card --out FOLDER --suite textarena
    python -m benchmarks.report_card --confirm              # only the reproductions of the defects
    python -m benchmarks.report_card --out FOLDER --page    # writes docs/report-card.md from FOLDER

Each environment runs in a process of its own. A line of FOLDER/SUITE.PASS.jsonl is an environment that is done, so a
command that was stopped goes on from there. Three passes: `probe` plays by the suite's API, `hashed` plays the first
episodes again with another PYTHONHASHSEED, `check` runs `agentrl check`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report_card.confirmed import confirm
from benchmarks.report_card.page import write_page

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "report_card"
BASE = ["aiohttp", "docstring-parser", "jinja2", "pydantic", "pyyaml", "rich", "transformers", "typer"]
VENVS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("venvs.yaml").read_text(encoding="utf-8"))
SUITES = {suite: name for name, venv in VENVS.items() for suite in venv["suites"]}
"""A suite -> its virtual environment."""
PASSES = {"probe": "0", "hashed": "1", "check": "0"}
"""A pass -> its PYTHONHASHSEED."""


def installed(name: str) -> Path:
    """The Python of a virtual environment, which is created unless it exists."""
    folder, done = CACHE / name, CACHE / name / ".installed"
    if not done.exists():
        print(f"installing {name} into {folder}", flush=True)
        subprocess.run([VENVS[name].get("python", sys.executable), "-m", "venv", folder], check=True)
        command = [folder / "bin" / "pip", "install", "--quiet", *BASE, *VENVS[name]["packages"]]
        subprocess.run(command, cwd=Path(__file__).with_name("suites"), check=True)
        done.touch()
    return folder / "bin" / "python"


def play(suite: str, which: str, out: Path, python: Path) -> None:
    """A pass over a suite. Raises SystemExit if the suite itself does not start."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "envs", ROOT / "sandbox")))
    settings = {"PYTHONPATH": paths, "PYTHONHASHSEED": PASSES[which], "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "benchmarks.report_card.worker", suite, out.resolve(), which]
    if subprocess.run(command, env={**os.environ, **settings}, cwd=ROOT).returncode:
        raise SystemExit(f"{suite} does not start; see the error above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=CACHE / "rows", help="the folder of the results")
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--pass", dest="passes", choices=PASSES, action="append")
    parser.add_argument("--python", type=Path, help="a Python that has the suite, instead of an installation")
    parser.add_argument("--page", action="store_true", help="only write docs/report-card.md")
    parser.add_argument("--confirm", action="store_true", help="only run the reproductions of the confirmed defects")
    args = parser.parse_args()
    if args.confirm:
        raise SystemExit(confirm(lambda suite: args.python or installed(SUITES[suite])))
    for suite in () if args.page else args.suite or SUITES:
        python = args.python or installed(SUITES[suite])
        for which in args.passes or PASSES:
            play(suite, which, args.out, python)
    if args.page:
        write_page(args.out)


if __name__ == "__main__":
    main()
