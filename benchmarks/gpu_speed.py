"""Run the part learner or engine of benchmarks.gpu in a separate process: python -m benchmarks.gpu_speed JOB (JSON).

learner: the speed of updates of the Learner for Qwen3's shapes with random weights in bfloat16, compared with TRL's
SFTTrainer (packed, with liger-kernel if installed) on the same rows. The rows are episodes of benchmarks.packing: of
the demo and of a searcher, in turn. Tokens a second count each row in full. The share of the peak counts 6 operations
for each parameter and computed token, without prefixes that rows share, and without computations that are repeated.

engine: tokens a second that LocalEngine and SGLang sample for 128 episodes at once, from random weights (on a GPU the
demo's model in float32, and SmolLM2's shape in bfloat16), and the time that LocalEngine adds to the forward pass alone
of the same batch (benchmarks.bench_local_engine).

A case measures both sides in one call. A part that stops between cases is continued by the next call.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.engine.base import Engine
from agentrl.engine.local import LocalEngine
from agentrl.engine.sglang.training.flags import variables
from agentrl.engine.sglang.training.process import check_interpreter
from agentrl.engine.sglang.training.trained import TrainedSGLang
from agentrl.engine.table import TrainingParts
from agentrl.errors import AgentRLError
from agentrl.models import tiny_model, tiny_tokenizer
from agentrl.train import TrainConfig, lora
from agentrl.train.batch import Row
from agentrl.train.learner import Learner
from benchmarks import bench_local_engine, packing
from benchmarks.gpu_parts import Job, console, peak_gib, run

Found: TypeAlias = dict[str, Any]
"""A row of the table."""
Case: TypeAlias = Callable[[], list[Found]]

PEAKS = {
    r"H100 PCIe": 756, r"H100 NVL": 835, r"H100|H200|H800": 989, r"B200": 2250, r"A100|A800": 312, r"L40S": 362,
    r"L40": 181, r"L4": 121, r"A10": 125, r"RTX 4090": 165, r"RTX 3090": 71,
}  # fmt: skip
"""Pattern of a GPU's name -> TFLOP/s of dense products in bfloat16, by the data sheets. The first match counts."""
EPISODES = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Qwen3 model with tied embeddings."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head: int = 128
    vocabulary: int = 151_936

    def make(self, device: str, attention: str = "sdpa") -> Any:
        """A model with random weights in bfloat16 on the device."""
        config = Qwen3Config(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=self.intermediate,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            head_dim=self.head, tie_word_embeddings=True, max_position_embeddings=40_960,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. The result is the median of the updates, without the first update."""

    shapes: tuple[Shape, ...]
    tokens: int
    """The number of tokens in the rows of an update."""
    budget: int
    """The most tokens of a forward and backward pass."""
    updates: int
    episodes: int
    """The number of episodes of each kind that are played to get rows."""
    turns: int
    new_tokens: int
    """The number of tokens that are sampled in a turn."""
    steps: int
    """The number of steps in the measurement of the engine's overhead."""


_ON_A_GPU = Plan(
    (
        Shape("0.6B", 1024, 3072, 28, 16, 8),
        Shape("1.7B", 2048, 6144, 28, 16, 8),
        Shape("4B", 2560, 9728, 36, 32, 8),
    ),
    tokens=32_768, budget=16_384, updates=3, episodes=160, turns=4, new_tokens=64, steps=40,
)  # fmt: skip
_SMALL = Plan(
    (Shape("toy", 64, 192, 3, 4, 2, head=16, vocabulary=1024),),
    tokens=4096, budget=2048, updates=2, episodes=8, turns=2, new_tokens=4, steps=2,
)  # fmt: skip


def plan_of(job: Job) -> Plan:
    return _SMALL if job.small else _ON_A_GPU


def main() -> None:
    run({"learner": learner, "engine": engine})


def measured(job: Job, cases: Mapping[str, Case]) -> dict[str, Any]:
    """The rows of all cases, each measured once. If the time ends between two cases, the result tells so."""
    file, began = job.folder / "cases.json", time.monotonic()
    found: dict[str, list[Found]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in [name for name in cases if name not in found]:
        if time.monotonic() - began > job.seconds:
            return {"status": "unfinished", "why": f"its time is over before {name}; run it again"}
        console.print(f"measuring {name}")
        found[name] = cases[name]()
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return {"status": "finished", "result": {"table": list(chain.from_iterable(found.values()))}}


def guarded(row: Found, measure: Callable[[], Found]) -> Found:
    """The row with its measurements, or with the reason of a failure. The memory of the measurement is freed."""
    try:
        return row | measure()
    except torch.OutOfMemoryError:
        return row | {"why": "does not fit into this GPU's memory"}
    except AgentRLError as exc:
        return row | {"why": str(exc)}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# The learner


def learner(job: Job) -> dict[str, Any]:
    plan = plan_of(job)
    peak = job.peak_tflops or (peak_of(torch.cuda.get_device_name()) if job.device == "cuda" else None)
    rows = real_rows(job.folder, plan)
    cases = {
        f"{shape.name}, {trains}": Updates(shape, trains, rows, plan, job.device, peak, job.folder).both
        for shape in plan.shapes
        for trains in ("lora", "all")
    }
    said = measured(job, cases)
    if "result" in said:
        about = {"rows": lengths_of(rows), "budget": plan.budget, "peak_tflops": peak}
        said["result"] = {**about, **said["result"]}
    return said


def peak_of(device: str) -> float | None:
    """TFLOP/s of the GPU, by its name; None if the name is not in PEAKS."""
    return next((float(peak) for name, peak in PEAKS.items() if re.search(rf"\b({name})\b", device)), None)


def real_rows(folder: Path, plan: Plan) -> list[Row]:
    """Rows of the demo's and of a searcher's episodes in turn, until they have `tokens`."""
    played = (
        packing.demo_episodes(folder / "demo", plan.episodes),
        packing.search_episodes(folder / "search", None, plan.episodes),
    )
    found, tokens = list[Row](), 0
    for row in chain.from_iterable(zip(*map(packing.rows_of, played), strict=False)):
        if tokens >= plan.tokens:
            break
        found.append(row)
        tokens += row.length
    return found


def lengths_of(rows: Sequence[Row]) -> Found:
    lengths = sorted(row.length for row in rows)
    return {
        "rows": len(rows),
        "tokens": sum(lengths),
        "shortest": lengths[0],
        "median": round(statistics.median(lengths)),
        "longest": lengths[-1],
    }


@dataclass(frozen=True, slots=True)
class Updates:
    """Measures updates of a shape, by agentrl's learner and by TRL."""

    shape: Shape
    trains: str
    """The trained weights: `lora` or `all`."""
    rows: Sequence[Row]
    plan: Plan
    device: str
    peak: float | None
    folder: Path

    def both(self) -> list[Found]:
        about = {"shape": self.shape.name, "trains": self.trains}
        return [
            guarded({**about, "by": "agentrl"}, self.agentrl),
            guarded({**about, "by": "TRL"}, self.trl),
        ]

    def agentrl(self) -> Found:
        config = TrainConfig.make(
            env="-", data="-", out="-", model="-", dtype="bfloat16", minibatches=1, learning_rate=1e-6,
            micro_batch_tokens=self.plan.budget, lora={"rank": 16} if self.trains == "lora" else None,
        )  # fmt: skip
        model = self.shape.make(self.device)
        parameters = model.num_parameters()
        taught = Learner(lora.attach(model, config.lora, base="-", seed=0), config)
        stamps = Stamps(self.device)
        for _ in range(1 + self.plan.updates):
            packing.policy(taught, self.rows)
            stamps.add()
        computed = sum(m.inputs["input_ids"].numel() for m in taught.micro_batches(self.rows, self.plan.budget))
        fused = any("forward" in vars(module) for module in model.modules())  # liger-kernel's replace the class's
        how = f"{taught.packing or 'padded'}{', liger' if fused else ''}"
        return self._row(stamps, parameters, computed, how)

    def trl(self) -> Found:
        if missing := [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]:
            return {"why": f"{' and '.join(missing)} not installed: pip install trl"}
        attention = "sdpa"
        if self.device == "cuda" and importlib.util.find_spec("flash_attn"):
            attention = "flash_attention_2"
        liger = self.device == "cuda" and importlib.util.find_spec("liger_kernel") is not None
        stamps = Stamps(self.device)
        try:
            model = self.shape.make(self.device, attention)
            parameters = model.num_parameters()
            self._train_by_trl(model, liger, stamps)
        except torch.OutOfMemoryError:
            raise
        except Exception as exc:  # noqa: BLE001 - the boundary of TRL, whose versions differ: its row has the reason
            return {"why": f"{type(exc).__name__}: {' '.join(str(exc).split()):.200}"}
        how = f"{attention}{', liger' if liger else ''}"
        return self._row(stamps, parameters, sum(row.length for row in self.rows), how)

    def _train_by_trl(self, model: Any, liger: bool, stamps: Stamps) -> None:
        from datasets import Dataset
        from peft import LoraConfig
        from transformers import TrainerCallback
        from trl import SFTConfig, SFTTrainer, pack_dataset

        class Stamped(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                stamps.add()

        data = Dataset.from_list([learned_by_trl(row) for row in self.rows])
        packs = len(pack_dataset(data.select_columns(["input_ids"]), self.plan.budget, "bfd"))
        config = SFTConfig(
            output_dir=str(self.folder / "trl"), max_steps=1 + self.plan.updates, max_length=self.plan.budget,
            packing=True, packing_strategy="bfd", per_device_train_batch_size=1, gradient_accumulation_steps=packs,
            completion_only_loss=True, learning_rate=1e-6, bf16=self.device == "cuda", use_cpu=self.device == "cpu",
            use_liger_kernel=liger, report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        SFTTrainer(
            model, config, train_dataset=data, processing_class=tiny_tokenizer(), callbacks=[Stamped()],
            peft_config=adapter if self.trains == "lora" else None,
        ).train()  # fmt: skip

    def _row(self, stamps: Stamps, parameters: int, computed: int, how: str) -> Found:
        seconds, tokens = stamps.median(), sum(row.length for row in self.rows)
        share = 6 * parameters * computed / seconds / (self.peak * 1e12) if self.peak else None
        return {
            "parameters": parameters,
            "how": how,
            "update_s": round(seconds, 3),
            "tokens_per_s": round(tokens / seconds),
            "computed_of_tokens": round(computed / tokens, 3),
            "share_of_peak": None if share is None else round(share, 4),
            "peak_gib": round(peak_gib(self.device), 2) if self.device == "cuda" else None,
        }


def learned_by_trl(row: Row) -> Found:
    """A row in TRL's format, with the same tokens and the same trained tokens."""
    trained = set(row.positions)
    tokens = row.tokens[: row.length + 1]  # it predicts the last one
    return {"input_ids": list(tokens), "completion_mask": [int(place in trained) for place in range(len(tokens))]}


class Stamps:
    """The time at which each of several updates ended on the device. On a GPU, creating Stamps resets the peak of
    memory."""

    def __init__(self, device: str) -> None:
        self.cuda, self.times = device == "cuda", list[float]()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()

    def add(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def median(self) -> float:
        """The median seconds of an update, without the first update."""
        return statistics.median(after - before for before, after in pairwise(self.times))


# The engine


def engine(job: Job) -> dict[str, Any]:
    plan = plan_of(job)
    models: dict[str, Callable[[], Any]] = {"tiny": lambda: tiny_model().to(job.device)}
    if not job.small:
        models["SmolLM2's shape"] = lambda: bench_local_engine.smollm2_shape(job.device)
    cases = {name: (lambda name=name, make=make: engines(job, plan, name, make)) for name, make in models.items()}
    said = measured(job, cases)
    if "result" in said:
        about = {"episodes": EPISODES, "turns": plan.turns, "tokens_a_turn": plan.new_tokens}
        said["result"] = {**about, **said["result"]}
    return said


def engines(job: Job, plan: Plan, name: str, make: Callable[[], Any]) -> list[Found]:
    """Each engine samples from the same model; the small one is not worth a server."""
    model = make()
    about = {"model": name, "dtype": str(model.dtype).removeprefix("torch.")}
    found = [guarded({**about, "by": "LocalEngine"}, lambda: local(model, name, plan))]
    if job.small or name != "tiny":
        found.append(guarded({**about, "by": "SGLang"}, lambda: sglang(job, model, plan)))
    return found


def local(model: Any, name: str, plan: Plan) -> Found:
    async def measure() -> Found:
        async with LocalEngine(model, tiny_tokenizer(), max_batch=EPISODES) as played:
            return await sampling_speed(played, plan)

    found = asyncio.run(measure())
    over = bench_local_engine.overhead(name, model, plan.steps)
    return {**found, **{key: round(value, 3) for key, value in over.items()}}


def sglang(job: Job, model: Any, plan: Plan) -> Found:
    """The speed of SGLang, by a server that is started for this measurement. Raises ConfigError if no Python has
    SGLang, or if the server does not start."""
    if job.small and job.sglang is None:
        return {"why": "not started on a CPU unless --sglang names an interpreter that has it"}
    python = job.sglang or sys.executable
    check_interpreter(python, variables(python, job.device))
    parts = TrainingParts(job.folder, job.device, str(model.dtype).removeprefix("torch."), console.print)

    async def measure() -> Found:
        async with TrainedSGLang(model, tiny_tokenizer(), parts, python=python) as played:
            await played.wake()
            await played.update(model, "1")
            return await sampling_speed(played, plan)

    return asyncio.run(measure())


async def sampling_speed(played: Engine, plan: Plan) -> Found:
    """Tokens a second over all episodes, from the first question to the last answer, after a round that warms up."""
    await sample(played, plan.new_tokens, 1)
    began = time.perf_counter()
    tokens = await sample(played, plan.new_tokens, plan.turns)
    seconds = time.perf_counter() - began
    return {"sampled": tokens, "seconds": round(seconds, 2), "tokens_per_s": round(tokens / seconds)}


async def sample(played: Engine, new_tokens: int, turns: int) -> int:
    """Play all episodes, and return the number of sampled tokens. Each turn reads 20 further tokens."""

    async def episode(number: int, ids: list[int]) -> int:
        sampled = 0
        for _ in range(turns):
            params: Any = {"max_new_tokens": new_tokens, "temperature": 1.0, "ignore_eos": True}
            answer = await played.generate(ids, params, session_id=f"{turns}-{number}")
            ids = [*ids, *answer.tokens, *ids[:20]]
            sampled += len(answer.tokens)
        return sampled

    prompts = bench_local_engine.make_prompts(EPISODES, random.Random(0))
    return sum(await asyncio.gather(*(episode(number, ids) for number, ids in enumerate(prompts))))


if __name__ == "__main__":
    main()
