"""What the demos have in common: the folder of a demo, the commands, and the figures at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(highlight=False)
EVALUATIONS = {"before": "eval_start", "after the imitation": "eval_warm", "after reinforcement": "eval_final"}


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


def recap(run: Path, seconds: float) -> None:
    """Print the held-out rewards with their intervals, the ledger, the plot's path, and the command of the page."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    table = Table(f"{summary['eval_tasks']} held-out tasks, greedy", "mean reward", "95 % interval", show_edge=False)
    for name, key in EVALUATIONS.items():
        low, high = summary["eval_intervals"][key]
        table.add_row(name, f"{summary[key]:.3f}", f"{low:.3f} to {high:.3f}")
    console.print(table)
    say(f"""\
ledger               {ledger(run)}
plot                 {run / "reward.png"}
page of the run      agentrl view {run}
in all               {seconds:.0f} s""")


def ledger(run: Path) -> str:
    """The counts of tokens, summed over all steps. The counts of each step are checked."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    sampled, trained = (sum(step[f"{kind}_tokens"] for step in steps) for kind in ("sampled", "trained"))
    masked = sum(sum(step["masked_tokens"].values()) for step in steps)
    balanced = sum(
        step["sampled_tokens"] == step["trained_tokens"] + sum(step["masked_tokens"].values()) for step in steps
    )
    return (
        f"sampled {sampled:,} = trained {trained:,} + masked {masked}; it balances in {balanced} of {len(steps)} steps"
    )
