"""A small real model on one GPU: the demo's task and a longer search, in bfloat16, from a warm start through RL.

    make bench-gpu         # python -m benchmarks.gpu [--device cuda] [--model smollm2-135m] [--steps 60]

LocalEngine samples, the embedded trainer learns, both from the same weights on the same device. With `--device cpu` it
shows that the command works, and nothing about a GPU: the results say which it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agentrl.models import load_model, load_tokenizer, save_model
from agentrl.render import load_renderer
from agentrl.rollout.evaluate import Evaluation
from agentrl.train import Summary, TrainConfig, Trainer, train

RESULTS = Path(__file__).resolve().parent / "results"
ENV = "agentrl_envs.fact_search:FactSearch"
console = Console(highlight=False)

RUNS: dict[str, dict[str, Any]] = {
    "demo": {"limits": {"turns": 4, "turn_tokens": 64, "context": 512}},
    "search": {"env_config": {"passages": 3}, "limits": {"turns": 4, "turn_tokens": 64, "context": 1024}},
}
"""The demo's questions with one passage an answer, and with three to read."""

PRETRAINED: dict[str, Any] = {"learning_rate": 1e-5, "micro_batch_tokens": 16384}
FROM_SCRATCH: dict[str, Any] = {"learning_rate": 3e-4}
WARM_START: dict[str, dict[str, Any]] = {
    "pretrained": {"steps": 150, "learning_rate": 1e-4, "micro_batch_tokens": 16384},
    "from scratch": {"steps": 1000, "learning_rate": 3e-3, "optimizer": "muon", "context_weight": 1.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--model", default="smollm2-135m", help="smollm2-135m, tiny or a Hugging Face folder")
    parser.add_argument("--steps", type=int, default=60, help="of RL")
    parser.add_argument("--warm-steps", type=int, help="of the warm start")
    parser.add_argument("--prompts", type=int, default=16, help="a step, each played eight times")
    parser.add_argument("--eval-tasks", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench-gpu-{int(time.time())}"))
    args = parser.parse_args()
    on_gpu = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    model = prepare(args.model, args.out / "model")
    keys = common(args, model) | {"device": "cuda" if on_gpu else "cpu"}
    runs = {name: measure(name, args.out / name, keys | own, on_gpu=on_gpu) for name, own in RUNS.items()}
    result = {
        "date": date.today().isoformat(),
        "ran_on_a_gpu": on_gpu,
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "model": args.model,
        "dtype": args.dtype,
        "options": {name: getattr(args, name) for name in ("steps", "warm_steps", "prompts", "eval_tasks")},
        "runs": runs,
    }
    show(result)
    file = RESULTS / f"gpu_{'cuda' if on_gpu else 'on_cpu'}.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {file}" + ("" if on_gpu else "; this was not run on a GPU"))


def prepare(model: str, folder: Path) -> str:
    """The model, in a folder with `tiny`'s chat template if its own cannot carry a tool call: SmolLM2's cannot."""
    tokenizer = load_tokenizer(model)
    if load_renderer(tokenizer).certificate.capabilities["calls"]:
        return model
    tokenizer.chat_template = load_tokenizer("tiny").chat_template
    save_model(load_model(model), tokenizer, folder)
    return str(folder)


def common(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """What the runs share; a model made from a seed wants other learning rates than one that can read."""
    scratch = args.model == "tiny"
    warm_start = WARM_START["from scratch" if scratch else "pretrained"]
    return {
        **(FROM_SCRATCH if scratch else PRETRAINED),
        "env": ENV,
        "model": model,
        "dtype": args.dtype,
        "steps": args.steps,
        "prompts_per_step": args.prompts,
        "eval_tasks": args.eval_tasks,
        "eval_every": 10,
        "kl_coef": 1e-3,  # so that every group is read, and training is measured from the first step on
        "warm_start": {**warm_start, **({"steps": args.warm_steps} if args.warm_steps else {})},
    }


def measure(name: str, out: Path, keys: dict[str, Any], *, on_gpu: bool) -> dict[str, Any]:
    """One run, and what came of it."""
    console.print(f"[bold]{name}[/]")
    data, held_out, demonstrations = record(out / "data", keys)
    warm_start = {**keys["warm_start"], "demonstrations": demonstrations}
    files = {"data": data, "eval_data": held_out, "out": out / "run", "warm_start": warm_start}
    seconds: dict[str, float] = defaultdict(float)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    summary = train(TrainConfig.make(**{**keys, **files}), trainer=timed(seconds), console=console)
    steps = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        **figures(summary, steps, seconds),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
    }


def figures(summary: Summary, steps: list[dict[str, Any]], seconds: dict[str, float]) -> dict[str, Any]:
    """tokens/s are medians over the steps: sampled ones of the rollout, read ones of the training."""
    warm_start = seconds.pop("warm_start_tokens") / seconds["warm_start"]
    phases: dict[str, float] = {
        **seconds,
        **{name: sum(step[f"{name}_s"] for step in steps) for name in ("rollout", "train")},
    }
    return {
        "held_out_greedy_reward": {
            "before": summary.eval_start,
            "after the warm start": summary.eval_warm,
            "after RL": summary.eval_final,
        },
        "rollout_tokens_per_second": round(statistics.median(s["rollout_tokens_per_second"] for s in steps), 1),
        "train_tokens_per_second": round(statistics.median(s["train_tokens_per_second"] for s in steps), 1),
        "warm_start_tokens_per_second": round(warm_start, 1),
        "seconds": {name: round(value, 1) for name, value in phases.items()} | {"all": summary.seconds},
        "logprob_diff_mean": max(step["logprob_diff_mean"] for step in steps),
        "logprob_diff_max": max(step["logprob_diff_max"] for step in steps),
        "curve": [round(step["reward_mean"], 4) for step in steps],
    }


def timed(seconds: dict[str, float]) -> type[Trainer]:
    """A Trainer that adds to `seconds` what its metrics leave out, and the tokens of the warm start."""

    class Timed(Trainer):
        async def warm_start(self) -> None:
            began = time.monotonic()
            await super().warm_start()
            seconds["warm_start"] += time.monotonic() - began
            config = self.config.warm_start
            assert config is not None
            seconds["warm_start_tokens"] += (
                config.steps
                * config.batch_size
                * statistics.fmean(len(demonstration.tokens) for demonstration in self.demonstrations)
            )

        async def evaluate(self, name: str) -> Evaluation:
            began = time.monotonic()
            found = await super().evaluate(name)
            seconds["evaluation"] += time.monotonic() - began
            return found

    return Timed


def record(folder: Path, keys: dict[str, Any]) -> tuple[Path, Path, Path]:
    """Questions, held-out ones, and the mediocre player's demonstrations in this model's tokens."""
    from agentrl import EnvFactory
    from agentrl.rollout.tasks import load_tasks
    from agentrl.testing import rollout
    from agentrl.types import Limits
    from agentrl_envs.fact_search import mediocre, write_tasks

    data, held_out = write_tasks(folder)
    renderer = load_renderer(load_tokenizer(keys["model"]))
    batch = 32
    tasks = load_tasks(data, split="train")[: min(6000, keys["warm_start"]["steps"] * batch)]

    async def play() -> list[str]:
        async with EnvFactory(ENV, keys.get("env_config", {})) as envs:
            limits = Limits(**keys["limits"])
            played = [
                await rollout(envs.make(), task, mediocre(task), renderer=renderer, limits=limits) for task in tasks
            ]
        return [json.dumps(trajectory.to_json()) + "\n" for trajectory in played]

    file = folder / "demonstrations.jsonl"
    file.write_text("".join(asyncio.run(play())), encoding="utf-8")
    return data, held_out, file


def show(result: dict[str, Any]) -> None:
    console.print(f"{result['model']} in {result['dtype']} on {result['device']}")
    runs = list(result["runs"].values())
    table = Table("", *result["runs"], show_edge=False)
    for name in ("rollout_tokens_per_second", "train_tokens_per_second", "warm_start_tokens_per_second"):
        table.add_row(name.replace("_", " "), *(f"{run[name]:,.0f}" for run in runs))
    for name in ("seconds", "held_out_greedy_reward"):
        for part in runs[0][name]:
            table.add_row(
                f"{name.replace('_', ' ')}: {part.replace('_', ' ')}", *(str(run[name][part]) for run in runs)
            )
    console.print(table)


if __name__ == "__main__":
    main()
