"""The demo: a model with random weights learns, by reward alone, to look up facts before it answers.

Each step is a command, which is printed before it runs, and which you can repeat by hand. After an interruption, the
same command continues the training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(os.path.relpath(Path(__file__).parent))
ENV = "agentrl_envs.fact_search:FactSearch"
console = Console(highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for data and run (runs/demo)")
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
    console.print(results(run))
    say(f"{ledger(run)}\nreward curve: {run / 'reward.png'}\nin all {time.monotonic() - began:.0f} s\n")
    say(f"""What to do next:
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


def agentrl(*arguments: object) -> None:
    command(sys.executable, "-m", "agentrl", *arguments, shown="agentrl")


def command(*parts: object, shown: str) -> None:
    """Print a command as a user would type it, and run it. If the command fails, the demo fails."""
    words = [str(part) for part in parts]
    say(f"[dim]$ {shown} {' '.join(words[3:])}[/]")
    done = subprocess.run(words, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


def heading(text: str) -> None:
    say(f"\n[bold]{text}[/]")


def two_hops(file: Path) -> int:
    """An episode that took two searches and found the answer, if there is one."""
    for index, trajectory in enumerate(map(json.loads, file.read_text(encoding="utf-8").splitlines())):
        if trajectory["reward"] == 1.0 and len(trajectory["turns"]) == 3:
            return index
    return 0


def results(run: Path) -> Table:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    table = Table("held-out questions, greedy", "mean reward", show_edge=False)
    for name, key in (("before", "eval_start"), ("after the warm start", "eval_warm"), ("after RL", "eval_final")):
        table.add_row(name, f"{summary[key]:.3f}")
    return table


def ledger(run: Path) -> str:
    """The counts of tokens, summed over all steps. The counts of each step are checked."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    sampled, trained = (sum(step[f"{kind}_tokens"] for step in steps) for kind in ("sampled", "trained"))
    masked = sum(sum(step["masked_tokens"].values()) for step in steps)
    balanced = sum(
        step["sampled_tokens"] == step["trained_tokens"] + sum(step["masked_tokens"].values()) for step in steps
    )
    return (
        f"ledger: sampled {sampled:,} = trained {trained:,} + masked {masked}; it balances in {balanced} of "
        f"{len(steps)} steps"
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the command that ran has said how to go on; so does the demo, started again
