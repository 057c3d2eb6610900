"""Record two rollouts of slime's train.py with one rank, train on the records with one rank and with two, and compare
the losses.

    SLIME_SRC=... python -m tests.rehearse.replay --model WARM --data DATA [--out FOLDER] [--prefix COMMAND]

WARM and DATA are as in tests/rehearse/learning.py. The model must earn rewards: a rehearsal draws random rewards
for a model that earns nothing. Exit code 0: one rank repeats each loss to the last digit, two ranks come within 1e-4.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from tests.rehearse.calling import rehearse
from tests.rehearse.layouts import describe, slime
from tests.rehearse.learning import write

_RANKS = {"live": 1, "one rank": 1, "two ranks": 2}


def script_of(folder: Path, name: str, *, model: Path, data: Path) -> Path:
    """A launch that records its rollouts, or that trains on the records."""
    script = write(folder / name.replace(" ", "-"), model=model, data=data, rollouts=2)
    text = script.read_text(encoding="utf-8")
    records = f"{folder}/records/{{rollout_id}}.pt"
    flag = "--save-debug-rollout-data" if name == "live" else "--load-debug-rollout-data"
    text = re.sub(r"   --save-debug-rollout-data .*\n.*\n", f'   {flag} "{records}"\n', text)
    text = re.sub(r"EVAL_ARGS=\(\n(.*\n)*?\)", "EVAL_ARGS=()", text, count=1)
    place = f"--actor-num-gpus-per-node {_RANKS[name]} --num-gpus-per-node {_RANKS[name]} --colocate"
    text = text.replace("--actor-num-gpus-per-node 2 --num-gpus-per-node 4 --rollout-num-gpus 2", place)
    script.write_text(text, encoding="utf-8")
    return script


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--prefix", default="", help="a command in front of each rehearsal")
    options = parser.parse_args()
    folder = (options.out or Path(tempfile.mkdtemp(prefix="replay-"))).resolve()
    (folder / "no-megatron").mkdir(parents=True, exist_ok=True)  # so the rehearsal takes its own
    env = {**os.environ, "SLIME": str(slime()), "MEGATRON": str(folder / "no-megatron")}
    losses = []
    for name in _RANKS:
        script = script_of(folder, name, model=options.model, data=options.data)
        arguments = [str(script), "--timeout", "300", "--full", "--no-resume"]
        run = rehearse(arguments, script.parent / "out", shlex.split(options.prefix), env=env)
        print(describe(name, run), flush=True)
        losses.append(run.report["figures"]["losses"] if run.report else [])
        print(f"{name}: {losses[-1]}", flush=True)
    live, one, two = losses
    near = len(live) == len(two) and all(abs(a - b) <= 1e-4 for a, b in zip(live, two, strict=True))
    return 0 if live and live == one and near else 1


if __name__ == "__main__":
    sys.exit(main())
