"""Memory and time of an update: the savings by checkpoints, pieces and LoRA, and a check that gradients are unchanged.

    python -m benchmarks.learner_memory         # [--model smollm2-135m] [--dtype bfloat16] [--lengths 2048 16384]

Each variant runs in a separate process. The batch is a row, of whose tokens the second half is trained.
The memory is the growth of resident memory in the forward and backward pass, up to its peak. A process may use the free
memory of the machine, less a reserve; a variant that needs more reports this. CPU seconds depend less on other programs
than wall-clock seconds. Results are added to those in the file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agentrl._util.memory import free_ram
from agentrl.models import load_model
from agentrl.train import TrainConfig, batch, log_probs, lora
from agentrl.train.batch import Row
from agentrl.train.learner import Learner

RESULTS = Path(__file__).resolve().parent / "results"
RESERVE = 2 << 30
"""Bytes of memory that are reserved for the rest of the machine."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
VARIANTS: dict[str, dict[str, Any]] = {
    "before": {"gradient_checkpointing": False, "pieces": False},
    "checkpoints": {"gradient_checkpointing": True, "pieces": False},
    "checkpoints and pieces": {"gradient_checkpointing": True, "pieces": True},
    "LoRA, rank 16": {"gradient_checkpointing": True, "pieces": True, "lora": {"rank": 16}},
}
console = Console(highlight=False, width=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 16384])
    parser.add_argument("--layers", type=int, help="only the first layers of the model, for a slow machine")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--child", nargs=3, metavar=("VARIANT", "LENGTH", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        variant, length, file = args.child
        print(json.dumps(measure(args, VARIANTS[variant], int(length), Path(file))))
        return
    for length in args.lengths:
        compare(args, length)
    show(json.loads(results_file(args.dtype).read_text(encoding="utf-8")))


def compare(args: argparse.Namespace, length: int) -> None:
    """Measure all variants at a length, and compare each gradient with the gradient of the first variant."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.pt"
        for variant in args.variants:
            file = Path(folder) / "gradient.pt"
            found = run(args, variant, length, file)
            if file.exists() and first.exists() and "lora" not in VARIANTS[variant]:
                found["gradient_off"] = distance(torch.load(first), torch.load(file))
            if file.exists() and not first.exists():
                file.rename(first)
            console.print(f"{length:,} tokens, {variant}: {found}")
            keep(args, length, variant, found)


def keep(args: argparse.Namespace, length: int, variant: str, found: dict[str, Any]) -> None:
    """Add a variant's figures to the results."""
    file = results_file(args.dtype)
    result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    result |= {
        "date": date.today().isoformat(),
        "device": f"CPU, {os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "model": args.model,
        "dtype": args.dtype,
    }
    which = f"{length}, the first {args.layers} layers" if args.layers else str(length)
    result.setdefault("updates", {}).setdefault(which, {})[variant] = found
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def results_file(dtype: str) -> Path:
    return RESULTS / f"learner_memory_{dtype}.json"


def run(args: argparse.Namespace, variant: str, length: int, file: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.learner_memory", "--model", args.model, "--dtype", args.dtype]
    allowed = free_ram() - RESERVE
    command += ["--layers", str(args.layers)] if args.layers else []
    load_before = os.getloadavg()[0]
    done = subprocess.run(
        [*command, "--child", variant, str(length), str(file)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed)),
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed"])[-1]
        if "memory" not in last and done.returncode != -9:
            raise RuntimeError(done.stderr)
        return {"does_not_fit_in_mb": allowed >> 20, "said": last[:200]}
    return {**json.loads(done.stdout.splitlines()[-1]), "load_average_before": round(load_before, 1)}


class Measured(Learner):
    """An optimiser that records memory, time and gradient after the backward pass, and then steps."""

    def _apply(self, *args: Any) -> float:
        self.backward_over, self.used = time.monotonic(), time.process_time()
        self.peak = resident("VmHWM")
        self.gradient = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        norm = super()._apply(*args)
        self.over = time.monotonic()
        return norm


def measure(args: argparse.Namespace, variant: dict[str, Any], length: int, file: Path) -> dict[str, Any]:
    model, dtype, values = args.model, args.dtype, dict(variant)
    if not values.pop("pieces"):
        batch.PIECE_BYTES = log_probs.PIECE_BYTES = 1 << 60
    config = TrainConfig.make(env="none:None", data="none", out="none", dtype=dtype, max_grad_norm=1e9, **values)
    whole = load_model(model, dtype=dtype)
    if args.layers:
        whole.model.layers, whole.config.num_hidden_layers = whole.model.layers[: args.layers], args.layers
    for parameter in whole.parameters():
        parameter.data = parameter.data.clone()  # as the trainer does; until now they may be on the disk
    loaded = lora.attach(whole, config.lora, base=model, seed=0)
    learner = Measured(loaded, config)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, loaded.config.vocab_size, (length,), generator=generator).tolist()
    positions = list(range(length // 2, length))
    row = Row(tokens, positions, (torch.randn(len(positions), generator=generator) / len(positions)).tolist())
    give_memory_back_at_once()
    before = reset_peak()
    began, used = time.monotonic(), time.process_time()
    loss = learner.imitate([row], [learner.optimizer], length)
    torch.save(learner.gradient, file)
    return {
        "peak_mb": (learner.peak - before) >> 20,
        "resident_before_mb": before >> 20,
        "forward_and_backward_s": round(learner.backward_over - began, 1),
        "processor_s": round(learner.used - used, 1),
        "step_s": round(learner.over - learner.backward_over, 1),
        "loss": loss,
        "gradient_norm": learner.gradient.float().norm().item(),
        "gradient_mb": learner.gradient.nbytes >> 20,
        "trained_parameters": len(learner.gradient),
    }


def give_memory_back_at_once() -> None:
    """Let glibc return freed memory to the system at once, so that resident memory equals used memory."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 1 << 20)
    libc.mallopt(_TRIM_THRESHOLD, 1 << 20)
    libc.malloc_trim(0)


def reset_peak() -> int:
    """Reset the peak of resident memory. Returns the resident memory in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident("VmRSS")


def resident(name: str) -> int:
    """The resident memory (`VmRSS`) or its peak (`VmHWM`) in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """The norm of the difference, relative to the first."""
    return float((first.float() - second.float()).norm() / first.float().norm())


def show(result: dict[str, Any]) -> None:
    table = Table("tokens", "variant", "peak, MB", "processor seconds", "gradient's norm", "off", title=result["model"])
    for length, variants in result["updates"].items():
        for name, found in variants.items():
            if "peak_mb" not in found:
                table.add_row(length, name, f"more than {found['does_not_fit_in_mb']:,}", "", "", "")
                continue
            off = found.get("gradient_off")
            table.add_row(
                length,
                name,
                f"{found['peak_mb']:,}",
                f"{found['processor_s']:.0f}",
                f"{found['gradient_norm']:.5g}",
                "" if off is None else f"{off:.1e}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
