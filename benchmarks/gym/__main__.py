"""The gym: train `tiny` on ten tasks with the default settings, and print a table.

    make gym                                        # all tasks, seeds 0, 1, 2
    python -m benchmarks.gym --tasks weather nim --seeds 0
    python -m benchmarks.gym --set kl_coef=0.01     # compares the change with the defaults, paired by seed
    python -m benchmarks.gym --tasks weather nim --seeds 0 --steps 10 --gain

A run that is done is not run again, and an interrupted run is resumed. Each run has one thread, and as many runs play
at once as there are cores. The exit code is 1 if a run failed, and with `--gain` if a task has no significant gain.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

import agentrl.init
from benchmarks.gym.suite import SUITE, GymTask

console = Console(highlight=False)
ROOT = Path(__file__).resolve().parents[2]
WEATHER = Path(agentrl.init.__file__).parent / "templates" / "tool"
"""The folder of README's Env."""
EVAL_EVERY, EVAL_TASKS = 5, 100


@dataclass(frozen=True)
class Result:
    """The figures of a run that is done."""

    before: float
    imitated: float
    learned: float
    interval: tuple[float, float]
    imitated_interval: tuple[float, float]
    tokens: int | None
    """The sampled tokens to 90 % of the gain, or None without a gain."""
    minutes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gym"))
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in SUITE], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once (the number of cores)")
    parser.add_argument("--steps", type=int, default=25, help="RL steps (25)")
    parser.add_argument("--gain", action="store_true", help="fail unless RL gains significantly on each task")
    args = parser.parse_args()
    tasks = [task for task in SUITE if not args.tasks or task.name in args.tasks]
    changes: list[list[str]] = [[], args.settings] if args.settings else [[]]
    began = time.monotonic()
    results = play(tasks, args.seeds, changes, args.out, args.steps, args.jobs)
    print_table(tasks, args.seeds, changes, results)
    console.print(f"in all {(time.monotonic() - began) / 60:.1f} minutes; runs in {args.out}")
    idle = without_gain(tasks, args.seeds, results) if args.gain else []
    if idle:
        console.print(f"[red]no significant gain: {', '.join(idle)}[/]")
    sys.exit(1 if idle or None in results.values() else 0)


Key = tuple[str, int, str]
"""A task's name, a seed, and the change of settings as text."""


def play(
    tasks: Sequence[GymTask],
    seeds: Sequence[int],
    changes: Sequence[list[str]],
    out: Path,
    steps: int,
    jobs: int,
) -> dict[Key, Result | None]:
    """The results of all runs. A run that fails has None, and its log is named."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda task: record(task, out), tasks))
        keys = [(task, seed, change) for seed in seeds for task in tasks for change in changes]
        results = list(pool.map(lambda key: run(*key, out=out, steps=steps), keys))
    names = [(task.name, seed, " ".join(change)) for task, seed, change in keys]
    return dict(zip(names, results, strict=True))


def record(task: GymTask, out: Path) -> None:
    """Write the demonstrations of a task."""
    file = demonstrations(task, out)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        command("play", task.env, "--player", task.weak, "--samples", task.samples, *limits(task), "--out", file)


def demonstrations(task: GymTask, out: Path) -> Path:
    return out / "demonstrations" / f"{task.name}.jsonl"


def run(task: GymTask, seed: int, change: list[str], *, out: Path, steps: int) -> Result | None:
    """Train a task with a seed, or read the run that is done."""
    folder = out / ("_".join(change).replace("/", "-") or "defaults") / f"{task.name}-{seed}"
    if not (folder / "summary.json").exists():
        words: list[object] = ["train", "--out", folder]
        if (folder / "checkpoints").exists():
            words.append("--resume")
        else:
            words += [task.env, "--warm-start", demonstrations(task, out), "--seed", seed]
            words += ["--steps", steps, "--set", f"eval_tasks={EVAL_TASKS}"]
            words += [*limits(task), "--set", f"eval_every={EVAL_EVERY}", "--set", "checkpoint_every=20"]
            words += [part for setting in change for part in ("--set", setting)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.with_suffix(".log")
        if not command(*words, log=log):
            console.print(f"[red]{task.name}, seed {seed}: the run failed; see {log}[/]")
            return None
    result = read(folder)
    console.print(
        f"{task.name:12} seed {seed} {' '.join(change)}: {result.before:.3f} before, {result.imitated:.3f} imitated, "
        f"{result.learned:.3f} learned, {result.minutes:.1f} minutes"
    )
    return result


def limits(task: GymTask) -> list[str]:
    return ["--set", f"limits.turns={task.turns}", "--set", f"limits.max_tokens_per_turn={task.tokens}"]


def command(*arguments: object, log: Path | None = None) -> bool:
    """Whether a command of agentrl succeeds. Its output goes to the log."""
    paths = os.pathsep.join([str(ROOT), str(WEATHER), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "agentrl", *map(str, arguments)]
    if log is None:
        return subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL).returncode == 0
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(words, check=False, env=environment, stdout=file, stderr=subprocess.STDOUT)
    return done.returncode == 0


def read(folder: Path) -> Result:
    """The figures of a run folder."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    intervals = summary["eval_intervals"]
    return Result(
        summary["eval_start"],
        summary["eval_warm"],
        summary["eval_final"],
        tuple(intervals["eval_final"]),
        tuple(intervals["eval_warm"]),
        tokens_to_gain(folder, summary["eval_warm"], summary["eval_final"]),
        summary["seconds"] / 60,
    )


def tokens_to_gain(folder: Path, imitated: float, learned: float, share: float = 0.9) -> int | None:
    """The tokens that RL had sampled when an evaluation first reached a share of the gain."""
    if learned <= imitated:
        return None
    goal = imitated + share * (learned - imitated)
    tokens = 0
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rewards = {row["step"]: row["mean"] for row in evaluations(folder)}
    for step in steps:
        tokens += int(step["sampled_tokens"])
        if rewards.get(step["step"], -1.0) >= goal:
            return tokens
    return tokens


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()]


def print_table(
    tasks: Sequence[GymTask], seeds: Sequence[int], changes: Sequence[list[str]], results: dict[Key, Result | None]
) -> None:
    """A row for each task and change: means over the seeds, and the change paired by seed."""
    table = Table(
        "task", "settings", "before", "imitated", "learned", "95 % interval of the gain", "tokens to 90 %", "minutes",
        show_edge=False,
    )  # fmt: skip
    for task in tasks:
        for change in changes:
            rows = [results[task.name, seed, " ".join(change)] for seed in seeds]
            table.add_row(task.name, " ".join(change) or "defaults", *cells([row for row in rows if row]))
        if len(changes) > 1:
            table.add_row("", "difference", "", "", *paired(task, seeds, changes[1], results), "", "")
    console.print(table)


def cells(rows: Sequence[Result]) -> list[str]:
    if not rows:
        return ["failed"] + [""] * 5
    low, high = interval([row.learned - row.imitated for row in rows], rows)
    tokens = [row.tokens for row in rows if row.tokens is not None]
    return [
        f"{fmean(row.before for row in rows):.3f}",
        f"{fmean(row.imitated for row in rows):.3f}",
        f"{fmean(row.learned for row in rows):.3f}",
        f"{low:+.3f} to {high:+.3f}",
        f"{fmean(tokens):,.0f}" if tokens else "no gain",
        f"{fmean(row.minutes for row in rows):.1f}",
    ]


def interval(gains: Sequence[float], rows: Sequence[Result]) -> tuple[float, float]:
    """The 95 % interval of the mean gain: the spread over the seeds, and at least the spread of the held-out tasks."""
    width = error(gains) if len(gains) > 1 else 0.0
    halves = [(high - low) / 2 for row in rows for low, high in (row.interval, row.imitated_interval)]
    width = max(width, sqrt(sum(half**2 for half in halves)) / len(rows))
    return fmean(gains) - width, fmean(gains) + width


def without_gain(tasks: Sequence[GymTask], seeds: Sequence[int], results: dict[Key, Result | None]) -> list[str]:
    """The names of the tasks whose gain by RL has an interval that is not above 0, with the default settings."""
    names = []
    for task in tasks:
        rows = [row for seed in seeds if (row := results[task.name, seed, ""]) is not None]
        if not rows or interval([row.learned - row.imitated for row in rows], rows)[0] <= 0:
            names.append(task.name)
    return names


STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""The number of seeds -> the factor of the 95 % interval (Student's t)."""


def error(gains: Sequence[float]) -> float:
    """The half width of the 95 % interval of a mean over seeds."""
    return STUDENT.get(len(gains), 2.5) * stdev(gains) / sqrt(len(gains))


def paired(task: GymTask, seeds: Sequence[int], change: list[str], results: dict[Key, Result | None]) -> list[str]:
    """The mean difference of the learned reward, and its interval over the seeds."""
    pairs = [(results[task.name, seed, " ".join(change)], results[task.name, seed, ""]) for seed in seeds]
    gains = [new.learned - old.learned for new, old in pairs if new and old]
    if not gains:
        return ["", ""]
    width = error(gains) if len(gains) > 1 else float("nan")
    return [f"{fmean(gains):+.3f}", f"{fmean(gains) - width:+.3f} to {fmean(gains) + width:+.3f}"]


if __name__ == "__main__":
    main()
