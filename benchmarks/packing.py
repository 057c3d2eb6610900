"""Compare packed rows with padded rows, on real episodes: computed tokens, tokens a second, and equal losses.

    python -m benchmarks.packing                        # two minutes: the demo, after a short warm start
    python -m benchmarks.packing --search FOLDER        # and Search-R1's searcher over corpus.jsonl and qa.jsonl
    python -m benchmarks.packing --coding docker        # and coding

The rows of the demo come from its training steps: groups of eight episodes of a task. Scripts play search and coding,
with an episode for each task, so rows share only the common beginning of all prompts. Both learners learn every row in
turn, and the best round counts. Tokens a second count each row in full, even if a part is computed once for all rows.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from agentrl import EnvFactory, Trajectory
from agentrl.models import load_model, tiny_model
from agentrl.testing import rollout, tiny_renderer
from agentrl.train import TrainConfig, train
from agentrl.train.batch import Row, episode_rows
from agentrl.train.learner import Learner
from agentrl.train.warm_start import Demonstration, weighted_rows
from agentrl_envs.search_r1 import searcher
from benchmarks.demo import record
from benchmarks.gpu_data import demo_data, demonstrations, search_data

ROOT = Path(__file__).resolve().parent.parent
console = Console(highlight=False)
_SEARCH = {
    "env": "agentrl_envs.search_r1:SearchR1",
    "model": "tiny",
    "limits": {"turns": 4, "observation_tokens": 400, "context": 1024},
}


@dataclass(frozen=True, slots=True)
class Case:
    """Batches of rows, and a function with which a learner learns from a batch."""

    batches: Sequence[Sequence[Row]]
    max_tokens: int
    learn: Callable[[Learner, Sequence[Row]], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of the demo with keep.groups=16, instead of a new one")
    parser.add_argument("--warm-steps", type=int, default=400, help="of the new run")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--search", metavar="FOLDER", help="corpus.jsonl and qa.jsonl")
    parser.add_argument("--coding", metavar="BACKEND", help="of sandboxes; only honest players play")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/packing.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model, case in cases(args, Path(folder)):
            found[name] = compare(model, case, args.rounds)
            console.print(f"{name}: {json.dumps(found[name])}")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, one thread, load {os.getloadavg()[0]:.0f}"
    if args.write:
        result = {"date": date.today().isoformat(), "machine": machine, "torch": torch.__version__} | found
        (ROOT / "benchmarks/results/packing.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def cases(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Any, Case]]:
    run = args.run or demo_run(folder, args.warm_steps)
    steps = [episodes(file) for file in sorted((run / "trajectories").glob("step_*"))[-8:]]
    halves = [rows_of(step)[half::2] for step in steps for half in (0, 1)]
    yield "demo", load_model(str(run / "model")), Case(halves, 2048, policy)
    shown = episodes(record(folder / "data") / "demonstrations.jsonl", 640)
    yield "demo, warm start", tiny_model(), Case(list(demonstration_rows(shown)), 1024, imitation)
    for name, played in others(args, folder):
        rows = rows_of(played)
        yield name, tiny_model(), Case([rows[i : i + 64] for i in range(0, len(rows), 64)], 4096, policy)


def demo_run(folder: Path, warm_steps: int) -> Path:
    """Run the demo for a few steps, and store the episodes of all steps."""
    given = example("fact_search")
    data = record(folder / "data")
    warm = {**given.pop("warm_start"), "demonstrations": data / "demonstrations.jsonl", "steps": warm_steps}
    given |= {
        "data": data / "train.jsonl",
        "steps": 8,
        "keep": {"groups": 16},
        "warm_start": warm,
        "out": folder / "run",
    }
    train(TrainConfig.make(**given), console=Console(quiet=True))
    return folder / "run"


def others(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Trajectory]]]:
    if args.search:
        yield "search", search_episodes(folder / "search", args.search, 160)
    if args.coding:
        yield "coding", asyncio.run(coding(args.coding))


def search_episodes(folder: Path, given: str | None, count: int) -> list[Trajectory]:
    """Up to `count` episodes of the searcher, over the corpus `given` or a corpus that the repository generates."""
    data = search_data(folder, given, plain=False)
    config = {**_SEARCH, "env_config": {"retriever": str(data.corpus), "topk": 3}}
    demonstrations(folder / "played.jsonl", replace(data, player=searcher), config, count)
    return episodes(folder / "played.jsonl")


def demo_episodes(folder: Path, count: int) -> list[Trajectory]:
    """Episodes of the demo's mediocre player."""
    data = demo_data(folder)
    demonstrations(folder / "played.jsonl", data, example("fact_search"), count)
    return episodes(folder / "played.jsonl")


def example(name: str) -> dict[str, Any]:
    """The keys of an example's run."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "examples" / name / "train.yaml").read_text(encoding="utf-8"))
    return read


async def coding(backend: str) -> list[Trajectory]:
    """Episodes of HumanEval by two players. The hostile player is left out, as a back end may not isolate its
    commands."""
    from agentrl_envs.coding import CodingEnv, gold, noop
    from agentrl_envs.coding.formats.functions import human_eval

    renderer, tasks = tiny_renderer(), human_eval()[:48]
    async with EnvFactory(CodingEnv, {"backend": backend, "size": 1}) as envs:
        players = [(gold, noop)[number % 2] for number in range(len(tasks))]
        return [
            await rollout(envs.make(), task, player(task), renderer=renderer)
            for task, player in zip(tasks, players, strict=True)
        ]


def episodes(file: Path, count: int | None = None) -> list[Trajectory]:
    with file.open(encoding="utf-8") as lines:
        return [Trajectory.from_json(json.loads(line)) for line in lines][:count]


def rows_of(played: Sequence[Trajectory]) -> list[Row]:
    """Rows whose advantages are 1 and -1 by turns, so that a learner changes little overall."""
    return [
        row
        for number, trajectory in enumerate(played)
        for row in episode_rows(trajectory, [(-1.0) ** number] * len(trajectory.turns))
    ]


def demonstration_rows(shown: Sequence[Trajectory]) -> Iterator[list[Row]]:
    """Batches of 32 demonstrations, in which every sampled token is trained."""
    found = [Demonstration(t.segment.ids, bytes(t.segment.prompt_length) + bytes(t.segment.loss_mask)) for t in shown]
    random.Random(0).shuffle(found)
    for first in range(0, len(found), 32):
        yield weighted_rows(found[first : first + 32], 1.0)


def policy(learner: Learner, rows: Sequence[Row]) -> float:
    return learner.learn(rows, step=1, normaliser=sum(len(row.positions) for row in rows)).loss


def imitation(learner: Learner, rows: Sequence[Row]) -> float:
    return learner.imitate(rows, [learner.optimizer], learner.config.micro_batch_tokens)


def compare(model: Any, case: Case, rounds: int) -> dict[str, Any]:
    """Let both learners learn the same rows in turn, from the same weights, and compare."""
    config = TrainConfig.make(
        env="-", data="-", out="-", learning_rate=1e-6, minibatches=1, micro_batch_tokens=case.max_tokens
    )
    learners = {name: Learner(copy.deepcopy(model), config) for name in ("padded", "packed")}
    learners["padded"].packing = None
    lengths = [row.length for rows in case.batches for row in rows]
    result: dict[str, Any] = {
        "rows": len(lengths),
        "mean_length": round(sum(lengths) / len(lengths)),
        "tokens": sum(lengths),
    }
    losses = {}
    seconds = dict.fromkeys(learners, float("inf"))
    for number in range(rounds):
        for name, learner in learners.items():
            began = time.process_time()
            found = [case.learn(learner, rows) for rows in case.batches]
            seconds[name] = min(seconds[name], time.process_time() - began)
            losses[name] = losses.get(name, found)
            if number == 0:
                passes = [m for rows in case.batches for m in learner.micro_batches(rows, case.max_tokens)]
                result[f"computed_{name}"] = sum(m.inputs["input_ids"].numel() for m in passes)
    result["padding"] = round(1 - result["tokens"] / result["computed_padded"], 3)
    result["shared"] = round(1 - result["computed_packed"] / result["tokens"], 3)
    result["tokens_per_s"] = {name: round(sum(lengths) / used) for name, used in seconds.items()}
    result["ratio"] = round(seconds["padded"] / seconds["packed"], 2)
    result["largest_difference_of_losses"] = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    return result


if __name__ == "__main__":
    main()
