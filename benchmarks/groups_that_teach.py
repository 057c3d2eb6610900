"""Three ways to make the episodes of a step worth their tokens, on the demo's task and from one warm start.

    python -m benchmarks.groups_that_teach [--parts flash refill distill] [--seeds 0 1 2] [--steps 40] [--out FOLDER]

    flash     flash_reinforce (one episode of each of 128 prompts) beside GRPO (16 prompts, 8 episodes each): the reward
              by sampled token
    refill    GRPO with refill: the share of groups that teach, before and after
    distill   no reward at all: the model learns from GRPO's, which scores its tokens

All of them begin with the weights after the warm start, which answer no held-out question. Tokens are compared, not
seconds. A run that was interrupted is resumed by the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from agentrl.train import TrainConfig, train
from benchmarks.demo import record

ROOT = Path(__file__).resolve().parent.parent
REACHED = 0.8
"""The sampled tokens are counted until the mean reward of five steps is at least this."""
_STEPS = 5
console = Console(highlight=False)

ONE_EACH = {"algorithm": "flash_reinforce", "prompts_per_step": 128, "group_size": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench-groups-{int(time.time())}"))
    args = parser.parse_args()
    base = demo_config(args.out)
    warm_start(base, args.out / "warm")
    base |= {"model": str(args.out / "warm"), "steps": args.steps}
    rows = {name: [row for seed in args.seeds for row in PARTS[name](base, args.out, seed)] for name in args.parts}
    for name, found in rows.items():
        show(name, found)
    file = ROOT / "benchmarks" / "results" / "groups_that_teach.json"
    about = {"date": date.today().isoformat(), "machine": f"{os.cpu_count()} cores, {platform.machine()}"}
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**before, **about, **rows}, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {file}")


def demo_config(out: Path) -> dict[str, Any]:
    """The demo's settings and data, evaluated at the end alone."""
    base = yaml.safe_load((ROOT / "examples" / "fact_search" / "train.yaml").read_text(encoding="utf-8"))
    data = record(out / "data")
    base["warm_start"]["demonstrations"] = data / "demonstrations.jsonl"
    return {**base, "data": data / "train.jsonl", "eval_data": data / "held_out.jsonl", "eval_every": 0}


def warm_start(base: dict[str, Any], out: Path) -> None:
    """Imitate the mediocre player, unless it was done before; leave the settings of RL in `base`."""
    imitate = base.pop("warm_start")
    if not (out / "summary.json").exists():
        train(TrainConfig.make(**{**base, "steps": 0, "warm_start": imitate, "out": out}), console=console)


def flash(base: Mapping[str, Any], out: Path, seed: int) -> list[dict[str, Any]]:
    ways: Mapping[str, Mapping[str, Any]] = {"grpo": {}, "flash_reinforce": ONE_EACH}
    return [run(name, {**base, **keys, "seed": seed}, out / f"{name}-{seed}") for name, keys in ways.items()]


def refill(base: Mapping[str, Any], out: Path, seed: int) -> list[dict[str, Any]]:
    ways: Mapping[str, Mapping[str, Any]] = {"grpo": {}, "refill": {"refill": 3}}
    return [run(name, {**base, **keys, "seed": seed}, out / f"{name}-{seed}") for name, keys in ways.items()]


def distill(base: Mapping[str, Any], out: Path, seed: int) -> list[dict[str, Any]]:
    """The teacher is GRPO's model of seed 0."""
    teacher = run("grpo", {**base, "seed": 0}, out / "grpo-0")
    one_each = {"prompts_per_step": ONE_EACH["prompts_per_step"], "group_size": 1}
    keys = {**one_each, "teacher": str(out / "grpo-0"), "seed": seed}
    taught = run("distill", {**base, **keys}, out / f"distill-{seed}")
    return [{**taught, "teacher_held_out": teacher["held_out"]}]


PARTS: Mapping[str, Callable[[Mapping[str, Any], Path, int], list[dict[str, Any]]]] = {
    "flash": flash,
    "refill": refill,
    "distill": distill,
}


def run(name: str, config: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Train, unless it was done before, and return the figures of the run."""
    if not (out / "summary.json").exists():
        console.print(f"[bold]{name}, seed {config['seed']}[/]")
        resume = (out / "config.yaml").exists()
        train(TrainConfig.make(**{**config, "out": out}), resume=resume, console=console)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "run": name,
        "seed": config["seed"],
        "before": summary["eval_start"],
        "held_out": None if summary["eval_final"] is None else round(summary["eval_final"], 3),
        "sampled_tokens": summary["sampled_tokens"],
        "tokens_to_reach": tokens_to_reach(steps),
        **{key: round(fmean(step[key] for step in steps), 3) for key in _MEANS if key in steps[0]},
    }


_MEANS = ("teaching_share_drawn", "teaching_share", "replaced_groups", "teacher_kl")


def tokens_to_reach(steps: list[dict[str, Any]]) -> int | None:
    """Sampled tokens until the mean reward of five steps in a row is at least REACHED; None if it never is."""
    for last in range(_STEPS, len(steps) + 1):
        if fmean(step["reward_mean"] for step in steps[last - _STEPS : last]) >= REACHED:
            return sum(step["sampled_tokens"] for step in steps[:last])
    return None


def show(name: str, rows: list[dict[str, Any]]) -> None:
    console.print(f"\n[bold]{name}[/]")
    table = Table(*dict.fromkeys(key for row in rows for key in row), show_edge=False)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
