"""All training benchmarks on a GPU: `make gpu`. They run in parts of ten minutes, and can be continued.

    make gpu                         # all parts; python -m benchmarks.gpu is the same
    make gpu PART=search-lora        # one of them: learner, engine, demo, search-full, search-lora
    make gpu SGLANG=PYTHON           # the part engine with the interpreter that has SGLang, if this one has not
    make gpu DEVICE=cpu              # small, in a few minutes: shows that the parts run, but no speed of a GPU
    make gpu USD=2.50                # the price of an hour of this machine: the bills then have costs
    make gpu PART=search-full SEEDS=3   # with three seeds, each as a separate part
    make gpu PEAK=989                # TFLOP/s of this GPU in bfloat16, if its name is not in the table of the part
    learner make gpu DATA=FOLDER             # a real corpus: corpus.jsonl and qa.jsonl in Search-R1's formats
    make gpu-wheels WHEELS=FOLDER    # on a machine with a network: the packages for a machine without
    make gpu WHEELS=FOLDER           # on the machine without a network: installs from FOLDER alone

learner       speed of an update for Qwen3's shapes of 0.6B, 1.7B and 4B, with LoRA and of all weights, beside TRL's
engine        speed of LocalEngine and of SGLang with 128 episodes at once, and what LocalEngine adds to a forward pass
demo          the demo's task: a model made from a seed learns to search by reward
search-full   the embedded trainer with smollm2-135m in bfloat16 as Search-R1: warm start, then RL, of all weights
search-lora   the same with LoRA

A part stops after --seconds at a checkpoint, and the program exits with 3. The same command continues, without the
finished parts. The state is in --out. Each part runs in a separate process, so its memory is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PARTS = ("learner", "engine", "demo", "search-full", "search-lora")
SPEEDS = ("learner", "engine")
"""The names of the parts that benchmarks.gpu_speed runs. benchmarks.gpu_parts runs the other parts."""
SECONDS = 540
UNFINISHED = 3
"""The exit code if a part is not finished."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings on which results depend. All results in a folder have the same settings."""

    device: str
    model: str
    data: str | None
    """A folder with corpus.jsonl and qa.jsonl; None for the questions that the repository generates."""

    @property
    def small(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True, slots=True)
class Given:
    """Further options of a part, on which its results do not depend."""

    usd_per_hour: float | None = None
    peak_tflops: float | None = None
    sglang: str | None = None


@dataclass(slots=True)
class State:
    """The content of a folder of results: the status and the results of each part so far."""

    settings: Settings
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, settings: Settings) -> State:
        """The state in `folder`, or a new one. Raises ValueError if its settings differ."""
        file = folder / "state.json"
        if not file.exists():
            return cls(settings)
        found = json.loads(file.read_text(encoding="utf-8"))
        for name, now in asdict(settings).items():
            if (was := found["settings"].get(name)) != now:
                raise ValueError(f"{folder} holds results with {name} {was}, not {now}: choose another --out, or {was}")
        return cls(settings, found["parts"])

    def write(self, folder: Path) -> None:
        whole = json.dumps(asdict(self), indent=1) + "\n"
        scratch = folder / ".state.json"  # a kill must not leave half a file
        scratch.write_text(whole, encoding="utf-8")
        scratch.rename(folder / "state.json")

    def to_do(self, asked: Sequence[str]) -> list[str]:
        """The parts that are not finished, in their order."""
        return [name for name in asked if self.parts.get(name, {}).get("status") != "finished"]


def merged(state: State, machine: Mapping[str, Any]) -> dict[str, Any]:
    """All results for the file in the repository, without paths of this machine."""
    settings = asdict(state.settings) | {"data": "given" if state.settings.data else "made by the repository"}
    not_run = {name: {"status": "not run", "why": "not asked for"} for name in PARTS}
    parts = not_run | state.parts
    return {
        "date": date.today().isoformat(),
        "ran_on_a_gpu": state.settings.device == "cuda",
        **machine,
        **settings,
        "small": state.settings.small,
        "parts": parts,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    args, settings = parse(arguments)
    try:
        state = State.read(args.out, settings)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    given = Given(args.usd_per_hour, args.peak_tflops, args.sglang)
    for name in state.to_do(args.part):
        print(f"== {name}", flush=True)
        state.parts[name] = run_part(name, args.out / name, settings, args.seconds, given)
        state.write(args.out)
        say(name, state.parts[name])
        args.results.write_text(json.dumps(merged(state, machine(settings.device)), indent=1) + "\n", encoding="utf-8")
    statuses = {name: state.parts[name]["status"] for name in args.part}
    print(f"{', '.join(f'{name}: {status}' for name, status in statuses.items())}; written to {args.results}")
    if "failed" in statuses.values():
        return 1
    return UNFINISHED if "unfinished" in statuses.values() else 0


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Settings]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--seeds", type=int, default=1, help="of the searches: each further seed is a further part")
    parser.add_argument("--model", help="of the search: smollm2-135m (on a CPU tiny), or a Hugging Face folder")
    parser.add_argument("--data", type=Path, help="a folder with corpus.jsonl and qa.jsonl")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of a part in this call ({SECONDS})")
    parser.add_argument(
        "--usd-per-hour", type=float, help="what an hour of this machine costs: the bills name the money"
    )
    parser.add_argument("--peak-tflops", type=float, help="of this GPU in bfloat16, if the part learner lacks its name")
    parser.add_argument("--sglang", metavar="PYTHON", help="the interpreter that has SGLang, for the part engine")
    parser.add_argument("--out", type=Path, help="a folder for the state (runs/gpu-cuda, runs/gpu-cpu)")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    import torch

    found = torch.cuda.is_available()
    if args.device == "cuda" and not found:
        parser.error("--device cuda: torch sees no GPU; DEVICE=cpu runs it small")
    device = ("cuda" if found else "cpu") if args.device == "auto" else args.device
    for name in ("corpus.jsonl", "qa.jsonl") if args.data else ():
        if not (args.data / name).is_file():
            parser.error(f"--data {args.data}: no {name} in it")
    if args.seeds < 1:
        parser.error(f"--seeds {args.seeds}: give 1 or more")
    args.part = [name for part in PARTS if part in args.part for name in named(part, args.seeds)]
    if args.seconds <= 0:
        parser.error(f"--seconds {args.seconds:g}: give a time in which something can be done")
    args.out = (args.out or ROOT / "runs" / f"gpu-{device}").absolute()
    args.results = args.results or RESULTS / f"gpu_{_slug(device)}.json"
    model = args.model or ("tiny" if device == "cpu" else "smollm2-135m")
    return args, Settings(device, model, str(args.data.absolute()) if args.data else None)


def named(part: str, seeds: int) -> list[str]:
    """The names of a part for each seed: search-full, search-full-seed-1, ..."""
    further = range(1, seeds) if part.startswith("search") else ()
    return [part, *(f"{part}-seed-{seed}" for seed in further)]


def run_part(name: str, folder: Path, settings: Settings, seconds: float, given: Given) -> dict[str, Any]:
    """Run a part in a separate process. Returns its results, or the status of a failed part."""
    folder.mkdir(parents=True, exist_ok=True)
    job = {"part": name, "folder": str(folder), "seconds": seconds, "small": settings.small}
    job |= {**asdict(settings), **asdict(given)}
    program = "benchmarks.gpu_speed" if name in SPEEDS else "benchmarks.gpu_parts"
    said = folder / "said.json"
    said.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-m", program, json.dumps(job)], cwd=ROOT, check=False)
    if done.returncode or not said.exists():
        return {"status": "failed", "why": f"exit status {done.returncode}; its output says more"}
    found: dict[str, Any] = json.loads(said.read_text(encoding="utf-8"))
    return found


def _slug(device: str) -> str:
    """The device in a file name: on_cpu, or the GPU's name, such as nvidia_h200."""
    return re.sub(r"\W+", "_", machine(device)["machine"].lower()) if device == "cuda" else "on_cpu"


def machine(device: str) -> dict[str, str]:
    import torch

    cpu = f"CPU, {os.cpu_count()} cores, {platform.machine()}"
    return {"machine": torch.cuda.get_device_name() if device == "cuda" else cpu, "torch": torch.__version__}


def say(name: str, part: Mapping[str, Any]) -> None:
    """Print a summary of a part's results."""
    print(f"{name}: {part['status']}{', ' + part['why'] if 'why' in part else ''}")
    for key, value in part.get("result", {}).items():
        if key == "table":
            print_table(value)
        else:
            print(f"  {key.replace('_', ' ')}: {json.dumps(value)}")


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a column for each key of a row. A row without measurements ends with the reason."""
    from rich.console import Console
    from rich.table import Table

    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "why"]
    table = Table(*(key.replace("_", " ") for key in columns), show_edge=False)
    for row in rows:
        table.add_row(*("" if row.get(key) is None else str(row[key]) for key in columns))
    Console(highlight=False, width=160).print(table)
    for row in rows:
        if "why" in row:
            print(f"  {', '.join(str(value) for key, value in row.items() if key != 'why')}: {row['why']}")


if __name__ == "__main__":
    sys.exit(main())
