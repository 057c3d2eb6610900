"""The wall time of a step where rollouts overlap with updates, beside one where they take turns.

    python -m benchmarks.overlap [--steps 12] [--rounds 2] [--warm 200] [--engine JSON] [--set KEY=JSON ...]

The demo's task and model, after a short warm start, with a reward that differs in every group. Runs with `staleness: 0`
and `staleness: 1` alternate, so that a busy machine is busy for both. Learner and engine have one thread each, in both
orders: two cores are needed. A step's halves are the rollout with the hand-over, and the update. The first two steps of
each run are left out.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.table import Table

from agentrl.train import TrainConfig, train
from agentrl.trajectory.trajectory import Trajectory
from benchmarks.demo import ROOT, record

console = Console(highlight=False, width=100)
SKIPPED = 2
"""First steps of a run: caches are cold, and the pipeline fills."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=int, default=200, help="steps of the warm start")
    parser.add_argument("--model", help="in place of a warm start: the folder of an earlier one")
    parser.add_argument("--engine", type=json.loads, default='"local"', help='such as {"kind": "sglang", "url": "..."}')
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="more keys of the run")
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench-overlap-{int(time.time())}"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    more = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in args.set)}
    config = settings(args.out) | {"engine": args.engine, "steps": args.steps}
    warm = config.pop("warm_start") | {"steps": args.warm}
    if args.model is None:
        run(config | {"steps": 0, "engine": "local", "warm_start": warm, "out": args.out / "warm"})
    reward = f"{__spec__.name}:even_tokens"
    config |= {"model": args.model or str(args.out / "warm"), "reward": reward, "learning_rate": 1e-5, **more}
    found: dict[int, list[Mapping[str, Any]]] = {0: [], 1: []}
    for number in range(args.rounds):
        for staleness, steps in found.items():
            steps += run(config | {"staleness": staleness, "out": args.out / f"round-{number}-{staleness}"})[SKIPPED:]
    console.print(table(found))
    console.print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def even_tokens(trajectory: Trajectory) -> float:
    """A reward that differs in every group, so that every episode is learned from."""
    return statistics.mean(token % 2 == 0 for action in trajectory.actions for token in action.tokens)


def settings(out: Path) -> dict[str, Any]:
    base: dict[str, Any] = yaml.safe_load((ROOT / "examples/fact_search/train.yaml").read_text(encoding="utf-8"))
    data = record(out / "data")
    base["warm_start"]["demonstrations"] = data / "demonstrations.jsonl"
    del base["eval_every"]
    return base | {"data": data / "train.jsonl", "device": "cpu"}


def run(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics of the steps of one run."""
    train(TrainConfig.make(**values), console=Console(file=io.StringIO()))
    metrics = values["out"] / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def table(found: Mapping[int, Sequence[Mapping[str, Any]]]) -> Table:
    """Medians over steps. `longer half` divides a step by the longer of the halves that it has where they take turns,
    and of those that it has itself."""
    shown = Table("staleness", "step, s", "rollout, s", "update, s", "longer half", "its own", "waits", "age")
    alone = halves(found[0])
    for staleness, steps in found.items():
        step, own = median(steps, "seconds"), halves(steps)
        waits = (
            ""
            if not staleness
            else " ".join(f"{median(steps, key):.2f}" for key in ("trainer_wait_s", "engine_wait_s"))
        )
        age = f"{median(steps, 'token_age_mean'):.0f}" if staleness else "0"
        shown.add_row(
            str(staleness), f"{step:.2f}", f"{own[0]:.2f}", f"{own[1]:.2f}", f"{step / max(alone):.2f}",
            f"{step / max(own):.2f}", waits, age,
        )  # fmt: skip
    return shown


def halves(steps: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    return median(steps, "rollout_s") + median(steps, "hand_over_s"), median(steps, "train_s")


def median(steps: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(step[key] for step in steps)


if __name__ == "__main__":
    main()
