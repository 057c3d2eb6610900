"""The quickstart of README.md, played: its commands in its order, then what was learned.

    make demo                                       # in the repository's root; SEED=1 for another seed
    python -m examples.quickstart.demo --seed 1     # the same, where agentrl is installed

The commands are read from README.md, and `agentrl init` writes the Env that README.md shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from examples.demos import agentrl, heading, recap

README = Path(__file__).parents[2] / "README.md"
RUN = Path("weather", "runs", "first")
"""Where the commands put the run, from the folder in which they begin."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="a new folder (runs/demo)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder, began = new_folder(args.out), time.monotonic()
    heading(f"README's quickstart, in {folder}")
    play(seeded(commands(README.read_text(encoding="utf-8")), args.seed), folder)
    run = folder / RUN
    heading("The same question before reinforcement: the model imitates a player that guesses")
    agentrl("show", run / "trajectories" / "eval_warm.jsonl")
    heading("What was learned")
    recap(run, time.monotonic() - began)


def commands(readme: str) -> list[str]:
    """The quickstart's commands, without their comments."""
    block = re.search(r"## Two minutes.*?```bash\n(.*?)```", readme, re.DOTALL)[1]
    return [line.partition("  #")[0].rstrip() for line in block.splitlines()]


def seeded(lines: list[str], seed: int) -> list[str]:
    """The commands with a seed for the training. Without one the seed is 0."""
    return [f"{line} --seed {seed}" if seed and line.startswith("agentrl train") else line for line in lines]


def play(lines: list[str], folder: Path) -> None:
    """Print and run the commands in one shell. If a command fails, the demo fails."""
    script = "".join(f"printf '\\n$ %s\\n' '{line}'\n{line} || exit\n" for line in lines)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(["bash", "-c", script], check=False, cwd=folder, env={**os.environ, "PATH": path})
    if done.returncode:
        sys.exit(done.returncode)


def new_folder(wanted: Path) -> Path:
    """The folder `wanted`, or the next free folder beside it."""
    folder, number = wanted, 2
    while folder.exists():
        folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the command that ran has written its own line
