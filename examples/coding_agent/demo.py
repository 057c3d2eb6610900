"""`tiny` learns in real sandboxes, by reward alone, to read a file with bash before it writes a second file.

python examples/coding_agent/demo.py                          # docker if an engine responds, else bubblewrap
python examples/coding_agent/demo.py --backend bubblewrap
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentrl_sandbox.backend import open_backend

HERE = Path(os.path.relpath(Path(__file__).parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", help="docker, bubblewrap or auto")
    parser.add_argument("--out", type=Path, default=Path("runs/coding_agent"), help="a new folder for data and run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-steps", type=int, default=300, help="steps of imitation before reinforcement")
    args = parser.parse_args()
    data, run, began = args.out / "data", args.out / "run", time.monotonic()
    os.environ["AGENTRL_RUN"] = f"coding_agent-{os.getpid()}"  # sandboxes carry it, so that those left can be counted
    command(HERE / "notes.py", data)
    # Demonstrations need no sandbox: what the player reads is known. See `Imagined`.
    player, demonstrations = f"{HERE}/notes.py:mediocre", data / "demonstrations.jsonl"
    files = ("--data", data / "train.jsonl", "--out", demonstrations)
    agentrl("play", f"{HERE}/notes.py:Imagined", "--player", player, *files, "--set", "env_config.tools=bash")
    files = ("--data", data / "train.jsonl", "--eval-data", data / "held_out.jsonl", "--warm-start", demonstrations)
    settings = ("--set", f"env_config.backend={args.backend}", "--seed", args.seed)
    settings += ("--set", f"warm_start.steps={args.warm_steps}")
    agentrl("train", "--config", HERE / "train.yaml", *files, *settings, "--out", run)
    left = asyncio.run(left_behind(args.backend))
    found = figures(run) | {"left_behind": left, "seconds_in_all": round(time.monotonic() - began)}
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


async def left_behind(backend: str) -> int:
    """How many sandboxes of this run still exist."""
    async with open_backend(backend) as engine:
        return sum(found.run == os.environ["AGENTRL_RUN"] for found in await engine.list())


def figures(run: Path) -> dict[str, Any]:
    """The success in held-out episodes, which are greedy, and the cost of an episode of RL."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    played = [
        json.loads(line) for file in (run / "trajectories").glob("step_*.jsonl") for line in file.open(encoding="utf-8")
    ]
    inside = sum(one["info"].get("sandbox_s", 0.0) for one in played)
    sampling = sum(turn["generate_s"] for one in played for turn in one["turns"])
    rollout_s = sum(step["rollout_s"] for step in steps)
    return {
        "held_out_before": summary["eval_start"],
        "held_out_after_the_warm_start": summary["eval_warm"],
        "held_out_after_rl": summary["eval_final"],
        "gain_by_rl": round(summary["eval_final"] - summary["eval_warm"], 3),
        "rl_steps": len(steps),
        "rl_episodes": sum(step["episodes"] for step in steps),
        "episodes_per_s": round(sum(step["episodes"] for step in steps) / rollout_s, 2),
        "share_of_an_episode_in_the_sandbox": round(inside / (inside + sampling), 3),
        "share_of_rl_in_rollouts": round(rollout_s / sum(step["seconds"] for step in steps), 3),
        "failed_episodes": sum(step["failed_episodes"] for step in steps),
    }


if __name__ == "__main__":
    main()
