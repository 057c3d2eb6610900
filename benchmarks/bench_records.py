"""What the records of a run cost beside its steps: index, advantages, log-probs, events, what is in flight.

    python benchmarks/bench_records.py [--model RUN] [--steps 8]     about a minute

The demo's configuration: with `--model` from the weights of a run of it, else after a short imitation. All times are
CPU seconds of one process: those of the threads in `RunRecords`, and those of all threads in a step. What a run wrote
before there were records, the plain trajectories of the same groups, is measured beside it and is no part of the share.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "envs")]

from agentrl.train import TrainConfig, train  # noqa: E402
from agentrl.train.files import write_atomically  # noqa: E402
from agentrl.train.records import RunRecords  # noqa: E402
from agentrl.train.trainer import Trainer  # noqa: E402
from benchmarks.groups_that_teach import demo_config  # noqa: E402

BOUND = 0.01
COUNTED = ("learned", "write_step", "write_in_flight", "event", "imitated")


class Spent:
    """CPU seconds: in records, in writing plain trajectories, and in steps of RL."""

    def __init__(self) -> None:
        self.records, self.plain, self.steps, self.episodes = 0.0, 0.0, 0.0, 0

    def counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*args, **given)
            finally:
                self.records += time.thread_time() - began

        return call

    def beside(self, write_step: Callable[..., Any]) -> Callable[..., Any]:
        def call(records: RunRecords, name: str, step: int, groups: Any, kept: int) -> None:
            write_step(records, name, step, groups, kept)
            began = time.thread_time()
            lines = [json.dumps(each.to_json(), ensure_ascii=False) + "\n" for group in groups[:kept] for each in group]
            write_atomically(records.path.with_name("plain.jsonl"), "".join(lines))
            self.plain += time.thread_time() - began

        return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a run of the demo; its newest weights are taken")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    spent = Spent()
    with tempfile.TemporaryDirectory() as folder:
        values = config(Path(folder), args.model) | {"steps": args.steps, "out": f"{folder}/run", "eval_every": 0}
        for name in COUNTED:
            setattr(RunRecords, name, spent.counted(getattr(RunRecords, name)))
        RunRecords.write_step = spent.beside(RunRecords.write_step)  # type: ignore[method-assign]
        train(TrainConfig.make(**values), trainer=timed(spent), console=Console(quiet=True))
    added, steps = spent.records - spent.plain, spent.steps - spent.plain
    print(f"{args.steps - 1} steps of {spent.episodes} episodes: {steps:.2f} CPU seconds, of them records {added:.3f}")
    missed = "" if added / steps <= BOUND else "   MISSED"
    print(f"{added / steps:.2%} (bound {BOUND:.0%}){missed}; plain trajectories {spent.plain:.3f} s", end="; ")
    print(f"load {os.getloadavg()[0]:.0f}")


def config(folder: Path, model: str | None) -> dict[str, Any]:
    values = demo_config(folder) | {"eval_tasks": 1}
    if model is not None:
        values.pop("warm_start", None)
        return values | {"model": model}
    values["warm_start"] = {**values["warm_start"], "steps": 60, "batch_size": 16}
    return values | {"kl_coef": 0.01}  # so that groups of equal rewards, all of them here, are learned from


def timed(spent: Spent) -> type[Trainer]:
    class Timed(Trainer):
        async def step(self, step: int) -> Any:
            """The first one warms caches up."""
            began = time.process_time()
            report = await super().step(step)
            if step == 1:
                spent.records = spent.plain = 0.0
            else:
                spent.steps += time.process_time() - began
                spent.episodes = report.rollout.episodes
            return report

    return Timed


if __name__ == "__main__":
    main()
