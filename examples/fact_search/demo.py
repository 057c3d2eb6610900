"""The demo: a model with random weights learns, by reward alone, to look up facts before it answers.

Each step is a command, which is printed before it runs, and which you can repeat by hand. After an interruption, the
same command continues the training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from examples.demos import agentrl, command, heading, recap, say

HERE = Path(os.path.relpath(Path(__file__).parent))
ENV = "agentrl_envs.fact_search:FactSearch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-search"), help="data and run (runs/demo-search)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    out, began = choose_folder(args.out), time.monotonic()
    data, run = out / "data", out / "run"
    if (run / "config.yaml").exists():
        heading(f"{run} was interrupted: going on with it")
        agentrl("train", "--resume", "--out", run)
    else:
        heading("1. Questions about real cities and countries; the held-out ones ask about places never asked before")
        command(sys.executable, "-m", "agentrl_envs.fact_search", data, shown="python -m agentrl_envs.fact_search")
        heading("2. Demonstrations by a player that guesses 65 % of the time: they teach the format, not the strategy")
        player, demonstrations = "agentrl_envs.fact_search:mediocre", data / "demonstrations.jsonl"
        agentrl("play", ENV, "--player", player, "--data", data / "train.jsonl", "--out", demonstrations)
        heading("3. Imitate them, then learn from reward: 1 for an answer that is right and was found with the tool")
        files = ("--data", data / "train.jsonl", "--eval-data", data / "held_out.jsonl", "--warm-start", demonstrations)
        agentrl("train", "--config", HERE / "train.yaml", *files, "--seed", args.seed, "--out", run)
    heading("4. One episode of the last step, token by token")
    last = max((run / "trajectories").glob("step_*.jsonl"))
    agentrl("show", last, "--index", two_hops(last))
    heading("5. What was learned")
    recap(run, time.monotonic() - began)
    say(f"""
What to do next:
  agentrl eval {ENV} --model {run} --data {data}/held_out.jsonl
  agentrl serve --model {run}          # the same policy behind SGLang's HTTP protocol
  agentrl show {run}                   # any other episode: --index N
  README.md: write an Env of your own; docs/slime.md: run it on a cluster""")


def choose_folder(wanted: Path) -> Path:
    """The folder `wanted`, or the next free folder beside it if `wanted` has a finished demo."""
    folder, number = wanted, 2
    while (folder / "run" / "summary.json").exists():
        folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return folder


def two_hops(file: Path) -> int:
    """An episode that took two searches and found the answer, if there is one."""
    for index, trajectory in enumerate(map(json.loads, file.read_text(encoding="utf-8").splitlines())):
        if trajectory["reward"] == 1.0 and len(trajectory["turns"]) == 3:
            return index
    return 0


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the command that ran has said how to go on; so does the demo, started again
