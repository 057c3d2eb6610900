"""`make demo-search` with three seeds, and two controls with equal time: does the reward teach, or any training?

    make bench-demo        # python -m benchmarks.demo [--seeds 0 1 2] [--out FOLDER]

For each seed, a warm start is followed by three continuations of its weights, with equal time:

    rl          as in the demo
    imitation   further imitation of the same mediocre player
    shuffled    RL in which the rewards of a step are shuffled among its episodes, so that they have no information
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from datetime import date
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from agentrl.train import Summary, TrainConfig, Trainer, train
from agentrl.train.order import Groups

ROOT = Path(__file__).resolve().parent.parent
console = Console(highlight=False)


class Shuffled(Trainer):
    """RL with the rewards of a step shuffled among its episodes."""

    async def collect(self, step: int) -> Groups:
        groups = await super().collect(step)
        episodes = [trajectory for group in groups for trajectory in group]
        rewards = [trajectory.reward for trajectory in episodes]
        random.Random(f"{self.config.seed}/{step}").shuffle(rewards)
        for trajectory, reward in zip(episodes, rewards, strict=True):
            trajectory.reward = reward
        return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench-demo-{int(time.time())}"))
    args = parser.parse_args()
    rows = [seed_row(seed, args.out / f"seed-{seed}", record(args.out / "data")) for seed in args.seeds]
    table = Table("seed", "before", "warm start", "rl", "imitation", "shuffled", "seconds of each", show_edge=False)
    for row in rows:
        figures = [f"{row[name]:.3f}" for name in ("before", "warm", "rl", "imitation", "shuffled")]
        table.add_row(str(row["seed"]), *figures, ", ".join(f"{s:.0f}" for s in row["seconds"]))
    console.print(table)
    result = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "held_out_greedy_reward": rows,
    }
    file = ROOT / "benchmarks" / "results" / "demo.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {file}")


def record(folder: Path) -> Path:
    """Write the demo's questions and demonstrations."""
    from typer.testing import CliRunner

    from agentrl.cli import app
    from agentrl_envs.fact_search import write_tasks

    demonstrations = folder / "demonstrations.jsonl"
    if not demonstrations.exists():
        data, _ = write_tasks(folder)
        player = "agentrl_envs.fact_search:mediocre"
        arguments = ["play", "agentrl_envs.fact_search:FactSearch", "--player", player, "--data", str(data)]
        CliRunner().invoke(app, [*arguments, "--out", str(demonstrations)], catch_exceptions=False)
    return folder


def seed_row(seed: int, out: Path, data: Path) -> dict[str, object]:
    """The results of a seed: a warm start and its three continuations."""
    console.print(f"[bold]seed {seed}[/]")
    base = yaml.safe_load((ROOT / "examples" / "fact_search" / "train.yaml").read_text(encoding="utf-8"))
    warm_start = {**base.pop("warm_start"), "demonstrations": data / "demonstrations.jsonl"}
    base |= {"data": data / "train.jsonl", "eval_data": data / "held_out.jsonl", "seed": seed}

    def run(name: str, trainer: type[Trainer] = Trainer, **keys: object) -> Summary:
        console.print(f"[dim]{name}[/]")
        return train(TrainConfig.make(**{**base, **keys, "out": out / name}), trainer=trainer, console=console)

    warm = run("warm", warm_start=warm_start, steps=0)
    model = str(out / "warm")  # a run folder: its final weights
    rl = run("rl", model=model)
    # As many steps of imitation as fit into RL's time, at a learning rate that does not undo the warm start.
    steps = round(int(warm_start["steps"]) * rl.seconds / warm.seconds)
    more = {**warm_start, "steps": steps, "learning_rate": base["learning_rate"], "optimizer": "adamw"}
    imitation = run("imitation", model=model, warm_start=more, steps=0)
    # Equal steps, which take about as long. Without information in the reward, the policy may well stop calling tools:
    # that is what this control is for.
    shuffled = run("shuffled", Shuffled, model=model, canaries=None)
    return {
        "seed": seed,
        "before": warm.eval_start,
        "warm": warm.eval_final,
        "rl": rl.eval_final,
        "imitation": imitation.eval_final,
        "shuffled": shuffled.eval_final,
        "seconds": [warm.seconds, rl.seconds, imitation.seconds, shuffled.seconds],
    }


if __name__ == "__main__":
    main()
