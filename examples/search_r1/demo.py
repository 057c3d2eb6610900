"""`tiny` learns to search before it answers, in Search-R1's tags, by reward alone.

python examples/search_r1/demo.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(os.path.relpath(Path(__file__).parent))
ENV = "agentrl_envs.search_r1:SearchR1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/search_r1"), help="a new folder for data and run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data, run, began = args.out / "data", args.out / "run", time.monotonic()
    command(HERE / "facts.py", data)
    demonstrations = data / "demonstrations.jsonl"
    corpus = ("--set", f"env_config.retriever={data / 'corpus.jsonl'}")
    files = ("--data", data / "train.jsonl", "--out", demonstrations)
    settings = ("--set", "env_config.topk=1", "--set", "limits.turns=4")
    agentrl("play", ENV, "--player", f"{HERE}/facts.py:mediocre", *files, *corpus, *settings)
    files = ("--data", data / "train.jsonl", "--eval-data", data / "held_out.jsonl", "--warm-start", demonstrations)
    agentrl("train", "--config", HERE / "train.yaml", *files, *corpus, "--seed", args.seed, "--out", run)
    found = figures(run) | {"seconds_in_all": round(time.monotonic() - began)}
    (args.out / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n" + "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in found.items()))
    print(f"look at an episode: agentrl show {run}")


def command(*words: object) -> None:
    """Run a Python program. If it fails, the demo fails."""
    print("$ python", *words, flush=True)
    done = subprocess.run([sys.executable, *map(str, words)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def agentrl(*words: object) -> None:
    command("-m", "agentrl", *words)


def figures(run: Path) -> dict[str, Any]:
    """The exact match on the held-out questions, which are played greedily."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "held_out_before": summary["eval_start"],
        "held_out_after_the_warm_start": summary["eval_warm"],
        "held_out_after_rl": summary["eval_final"],
        "gain_by_rl": round(summary["eval_final"] - summary["eval_warm"], 3),
        "rl_steps": len(steps),
        "rl_episodes": sum(step["episodes"] for step in steps),
        "failed_episodes": sum(step["failed_episodes"] for step in steps),
    }


if __name__ == "__main__":
    main()
