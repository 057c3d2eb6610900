"""Run a part of benchmarks.gpu in a separate process: python -m benchmarks.gpu_parts JOB (JSON). Writes said.json."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from agentrl.errors import AgentRLError
from agentrl.models import load_config
from agentrl.rollout.play.evaluate import Evaluation
from agentrl.train import Summary, TrainConfig, Trainer, train
from agentrl.train.bill import told_cost
from agentrl.train.memory import MemoryEstimate, MemoryInputs, Shape
from agentrl.train.order import Groups
from benchmarks.gpu_data import ROOT, Data, demo_data, demonstrations, search_data

console = Console(highlight=False)
_REPLICATES = 2000
_LORA = {"lora": {"rank": 16}}
_WARM_LORA = {"learning_rate": 1.5e-3, "optimizer": "adamw"}
"""Settings of the warm start for LoRA, which needs a larger learning rate than training of all weights. For RL with
LoRA, TrainConfig has a default."""

_PRETRAINED: dict[str, Any] = {
    "env": "agentrl_envs.search_r1:SearchR1",
    "env_config": {"topk": 2, "response_tokens": 96},
    "limits": {"turns": 2, "observation_tokens": 700, "context": 2048},
    "learning_rate": 1e-5,
    "lr_final": 0.5,
    "refill": 2,
    "micro_batch_tokens": 8192,
    "warm_start": {"batch_size": 16, "learning_rate": 3e-4, "micro_batch_tokens": 8192},
}
"""Search-R1 for a model that can read. The 2,048 tokens of SmolLM2 have room for a prompt of 160 tokens, two searches
of two whole passages (in a real corpus, a passage has 232 tokens in the median, and 599 at the 95th percentile), and
the forced answer. The learning rate never falls below half, so that late groups still teach. Groups with equal rewards
are replaced, as most groups earn nothing at first. A warm start of 30 steps reaches only 0.29 of its learning rate, as
the rate rises over 30 steps and falls at the same time."""
_EVEN = "benchmarks.gpu_data:even"
"""The reward of a small run. Such a run would earn nothing with the task's reward, so nothing could be measured."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a part is done. The warm start of a search learns 240 demonstrations twice, which teaches the
    format."""

    warm_steps: int
    steps: int
    prompts: int
    group: int
    eval_tasks: int
    demonstrations: int


_ON_A_GPU = {
    "demo": Size(1000, 80, 16, 8, 300, 6000),
    "search": Size(30, 100, 16, 8, 200, 240),
}
_SMALL = {
    "demo": Size(10, 2, 4, 4, 16, 64),
    "search": Size(6, 2, 2, 4, 8, 32),
}
_SMALL_PRETRAINED = Size(2, 2, 1, 2, 2, 8)
"""The size of a small run with a model of 100 million parameters, which trains about 20 tokens a second on a CPU."""


@dataclass(frozen=True, slots=True)
class Job:
    part: str
    folder: Path
    seconds: float
    small: bool
    device: str
    model: str
    data: str | None
    usd_per_hour: float | None = None
    peak_tflops: float | None = None
    sglang: str | None = None
    """The path of the Python that has SGLang. None: the running Python."""

    @property
    def seed(self) -> int:
        return int(self.part.partition("-seed-")[2] or 0)

    @property
    def size(self) -> Size:
        kind = self.part.partition("-")[0]
        if self.small and kind == "search" and self.model != "tiny":
            return _SMALL_PRETRAINED
        return (_SMALL if self.small else _ON_A_GPU)[kind]


def main() -> None:
    run({"demo": embedded, "search": embedded})


def run(parts: Mapping[str, Callable[[Job], dict[str, Any]]]) -> None:
    """Run the part that the command line names, and write its results."""
    job = Job(**json.loads(sys.argv[1]))
    job = Job(**{**_fields(job), "folder": Path(job.folder)})
    try:
        said = parts[job.part.partition("-")[0]](job)
    except AgentRLError as exc:
        said = {"status": "failed", "why": str(exc)}
    (job.folder / "said.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__slots__}


# The embedded trainer


def embedded(job: Job) -> dict[str, Any]:
    """Run the demo or a search, until its end or until its time is over."""
    run, began = job.folder / "run", time.monotonic()
    data = make_data(job)
    config = make_config(job, data)
    kept = Kept(job.folder / "kept.json")
    if not (run / "config.yaml").exists():
        recorded = job.folder / "demonstrations.jsonl"
        console.print(f"recording up to {job.size.demonstrations:,} demonstrations in the tokens of {job.model}")
        kept.add("demonstrations", demonstrations(recorded, data, config, job.size.demonstrations))
        config["warm_start"]["demonstrations"] = recorded
        made, resume = TrainConfig.make(**config), False
    else:
        made, resume = TrainConfig.from_yaml(run / "config.yaml"), True
    left = max(job.seconds - (time.monotonic() - began), 1.0)
    try:
        summary = train(made, resume=resume, trainer=timed(kept, left, job.device), console=console)
    except asyncio.CancelledError:
        step = len(lines(run / "metrics.jsonl"))
        return {"status": "unfinished", "why": f"its time is over after step {step} of {made.steps}; run it again"}
    finally:
        kept.most("process_gib", max([peak_gib(job.device), *kept.peaks().values()]))
        kept.write()
    ran = TrainConfig.from_yaml(run / "config.yaml")  # with the engine that `auto` became
    return {"status": "finished", "result": {"data": data.about, **figures(run, ran, summary, kept)}}


def make_data(job: Job) -> Data:
    """The data of a part. The first call writes it, and later calls read it, so that a run continues with the same
    questions."""
    folder = job.folder / "data"
    if job.part == "demo":
        return demo_data(folder)
    return search_data(folder, job.data, plain=job.model == "tiny")


def make_config(job: Job, data: Data) -> dict[str, Any]:
    """The keys of TrainConfig, except the demonstrations."""
    config, size = _base(job), job.size
    warm = {**config["warm_start"], "steps": size.warm_steps}
    if job.small:
        warm["batch_size"] = min(8, size.demonstrations // 4)
    if job.part.startswith("search-lora"):
        config = {key: value for key, value in config.items() if key != "learning_rate"} | _LORA
        warm |= _WARM_LORA
    if data.corpus is not None:
        config["env_config"] = {**config["env_config"], "retriever": str(data.corpus)}
    return {
        **config,
        "data": data.train,
        "eval_data": data.held_out,
        "out": job.folder / "run",
        "device": job.device,
        "dtype": "float32" if job.part == "demo" else "bfloat16",
        "steps": size.steps,
        "prompts_per_step": size.prompts,
        "group_size": size.group,
        "eval_tasks": size.eval_tasks,
        "eval_every": 20,
        "checkpoint_every": 20,
        "warm_start": warm,
        "reward": _EVEN if job.small else None,
        "usd_per_hour": job.usd_per_hour,
        "seed": job.seed,
    }


def _base(job: Job) -> dict[str, Any]:
    if job.part == "demo":
        return {**_yaml("fact_search"), "model": "tiny"}
    if job.model != "tiny":
        return {**_PRETRAINED, "model": job.model}
    config = _yaml("search_r1")
    if job.data is not None:  # longer passages than those of cities
        config["limits"] = {"turns": 2, "observation_tokens": 300, "context": 1024}
    return config


def _yaml(example: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "examples" / example / "train.yaml").read_text(encoding="utf-8"))
    return read


class Kept:
    """Measurements in addition to a run's metrics, summed over all calls of the run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.values: dict[str, float] = defaultdict(float)
        if file.exists():
            self.values.update(json.loads(file.read_text(encoding="utf-8")))

    def add(self, name: str, value: float) -> None:
        self.values[name] += value

    def most(self, name: str, value: float) -> None:
        self.values[name] = max(self.values[name], value)

    def peaks(self) -> dict[str, float]:
        return {name[:-4]: value for name, value in self.values.items() if name.endswith("_gib")}

    def write(self) -> None:
        self.file.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")


def timed(kept: Kept, seconds: float, device: str) -> type[Trainer]:
    """A Trainer that stops after `seconds` as after Ctrl-C, and records the peak of memory of each phase. Its bill has
    the durations."""

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        if device != "cuda":  # of a CPU only the whole process's peak is known
            yield
            return
        torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            kept.most(f"{name}_gib", peak_gib(device))

    class Timed(Trainer):
        async def run(self) -> Summary:
            task = asyncio.current_task()
            assert task is not None
            timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
            try:
                return await super().run()
            finally:
                timer.cancel()

        async def warm_start(self) -> None:
            with phase("warm_start"):
                await super().warm_start()

        async def evaluate(self, name: str) -> Evaluation:
            with phase("evaluation"):
                return await super().evaluate(name)

        async def collect(self, step: int) -> Groups:
            with phase("rollout"):
                return await super().collect(step)

        def update(self, groups: Groups, step: int) -> dict[str, Any]:
            with phase("train"):
                return super().update(groups, step)

    return Timed


def figures(run: Path, config: TrainConfig, summary: Summary, kept: Kept) -> dict[str, Any]:
    """The results of a finished run. tokens/s are medians over the steps that learned, of sampled and of trained
    tokens."""
    steps = lines(run / "metrics.jsonl")
    learned = [step for step in steps if step["read_tokens"]] or steps
    bill: Any = summary.bill
    names = {"before": "start", "after the warm start": "warm", "after RL": "final"}
    held_out = {name: scores(run / "trajectories" / f"eval_{file}.jsonl") for name, file in names.items()}
    return {
        "model": str(config.model) if Path(config.model).name == config.model else Path(config.model).name,
        "dtype": config.dtype,
        "engine": config.engine,
        "steps": summary.steps,
        "demonstrations": int(kept.values["demonstrations"]),
        "reward": config.reward or "the task's own",
        "from_nothing_to_this_gain": told_gain(config, held_out, bill),
        "held_out_greedy_reward": held_out,
        "gain_of_rl": gain(run / "trajectories"),
        "groups_that_teach": teaching(steps),
        "rollout_tokens_per_second": median(steps, "rollout_tokens_per_second"),
        "train_tokens_per_second": median(learned, "train_tokens_per_second"),
        "warm_start_tokens_per_second": round(
            bill["tokens"].get("imitated", 0) / max(bill["seconds"].get("warm_start", 0.0), 1e-9), 1
        ),
        "bill": bill,
        "peak_gib": {name: round(value, 2) for name, value in kept.peaks().items()},
        "arithmetic_gib": arithmetic(config),
        "engine_trainer_difference": difference(steps, "logprob_diff_mean", "logprob_diff_max"),
        "curve": [round(step["reward_mean"], 4) for step in steps],
        "held_out_curve": {str(s["step"]): round(s["eval_reward_mean"], 4) for s in steps if "eval_reward_mean" in s},
    }


def arithmetic(config: TrainConfig) -> dict[str, float]:
    """agentrl's estimate of memory: for learning, for playing an episode of the greatest length, and for each
    component.

    The memory of CUDA itself is left out, as torch's peak does not include it.
    """
    shape = Shape.of(load_config(config.model))
    need = MemoryEstimate.of(shape, MemoryInputs.of(config, shape, on_gpu=config.device == "cuda"))
    parts = {name: value for name, value in asdict(need).items() if name not in ("fixed", "asleep") and value}
    known = {"learning": need.learning - need.fixed, "one_episode": need.rollout - need.fixed, **parts}
    return {name: round(value / 2**30, 3) for name, value in known.items()}


def scores(file: Path) -> dict[str, Any]:
    """The mean reward of an evaluation's episodes with its interval, for all questions and for each source of
    questions."""
    episodes = lines(file)
    found: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        found[str(episode["task"]["metadata"].get("data_source", "all"))].append(episode["reward"] or 0.0)
    everything = score([reward for rewards in found.values() for reward in rewards])
    return everything if len(found) < 2 else {**everything, "by_source": {name: score(r) for name, r in found.items()}}


def gain(trajectories: Path) -> dict[str, Any]:
    """The mean difference that RL made to the reward of a held-out task, with its bootstrap interval over
    the tasks. The gain is real if the interval excludes 0."""
    before, after = (lines(trajectories / f"eval_{name}.jsonl") for name in ("warm", "final"))
    after_by_id = {episode["task"]["id"]: episode["reward"] or 0.0 for episode in after}
    return score([after_by_id[one["task"]["id"]] - (one["reward"] or 0.0) for one in before])


def told_gain(config: TrainConfig, held_out: Mapping[str, Mapping[str, Any]], bill: Mapping[str, Any]) -> str:
    """The gain over weights that were never trained on the task, with the cost of data and warm start."""
    rewards = " -> ".join(f"{scored['mean']:.3f}" for scored in held_out.values())
    return f"held out {rewards} in {told_cost(bill)}{'' if config.usd_per_hour else ' (name a price: USD=...)'}"


def teaching(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The share of groups with different rewards, in the first and in the last fifth of the steps."""
    shares = [1 - step["zero_advantage_groups"] / step["groups"] for step in steps]
    fifth = max(len(shares) // 5, 1)
    return {
        name: round(statistics.fmean(part), 3) for name, part in (("first", shares[:fifth]), ("last", shares[-fifth:]))
    }


def score(rewards: Sequence[float]) -> dict[str, Any]:
    """The mean of the rewards, and its 95 % bootstrap interval."""
    draw, count = random.Random(0), len(rewards)
    means = sorted(statistics.fmean(draw.choices(rewards, k=count)) for _ in range(_REPLICATES))
    low, high = means[round(0.025 * _REPLICATES)], means[round(0.975 * _REPLICATES) - 1]
    return {"mean": round(statistics.fmean(rewards), 4), "interval": [round(low, 4), round(high, 4)], "tasks": count}


# Of both


def difference(steps: Sequence[Mapping[str, Any]], mean: str, largest: str) -> dict[str, float]:
    """The differences between the log-probs of engine and trainer for the same tokens, in the worst step."""
    return {name: float(f"{max(step[key] for step in steps):.2g}") for name, key in (("mean", mean), ("max", largest))}


def median(steps: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(statistics.median(step[name] for step in steps), 1)


def peak_gib(device: str) -> float:
    """The peak of memory in GiB: of tensors on the GPU since the last reset, or on a CPU of this process since its
    start."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated() / 2**30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as opened:
        return [json.loads(line) for line in opened]


if __name__ == "__main__":
    main()
