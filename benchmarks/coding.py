"""Coding episodes of scripted players over HumanEval: rewards, leftover sandboxes, episodes a second.

    python -m benchmarks.coding --backend docker          # 500 episodes; --episodes 60 for a short run

Players take turns: gold (reward 1), the idle player (reward 0), and the hostile player (reward 0), which tries its
attacks in turn. With --write, the results go to benchmarks/results/coding_BACKEND.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl import EnvFactory, Task, Trajectory
from agentrl.errors import ConfigError
from agentrl.testing import rollout, tiny_renderer
from agentrl.types import Limits
from agentrl_envs.coding import CodingEnv, gold, noop
from agentrl_envs.coding.formats.functions import human_eval
from agentrl_sandbox import owners
from agentrl_sandbox.backend import open_backend
from tests.envs.coding.attacks import ATTACKS, attack

ROOT = Path(__file__).resolve().parent.parent
SHORT = 12
"""The number of episodes of a short run."""
SPEC = {"memory_mb": 256, "pids": 64, "disk_mb": 64, "file_mb": 256}


@dataclass(frozen=True, slots=True)
class Plan:
    """An episode: its player, and the right reward."""

    task: Task
    player: str
    reward: float

    def turns(self):  # noqa: ANN201
        if self.player in ("gold", "noop"):
            return {"gold": gold, "noop": noop}[self.player](self.task)
        return attack(self.player)


@dataclass(frozen=True, slots=True)
class Done:
    plan: Plan
    trajectory: Trajectory
    seconds: float

    @property
    def right(self) -> bool:
        return self.trajectory.failure is None and self.trajectory.reward == self.plan.reward

    def tell(self) -> None:
        """Print the episode if its reward is wrong."""
        if not self.right:
            failure, log = self.trajectory.failure, self.trajectory.info.get("grading", "")
            said = failure.error if failure else log
            print(
                f"WRONG: {self.plan.player} on {self.plan.task.id}: {self.trajectory.reward}: {said[:300]}", flush=True
            )


def plans(episodes: int) -> list[Plan]:
    tasks, names, made = human_eval(), sorted(ATTACKS), []
    for number in range(episodes):
        kind, turn = number % 3, number // 3
        player = ("gold", "noop", names[turn % len(names)])[kind]
        made.append(Plan(tasks[turn % len(tasks)], player, float(kind == 0)))
    return made


async def play(backend: str, episodes: int, concurrency: int) -> tuple[list[Done], float, object, int]:
    """All episodes, their duration in seconds, the pool's statistics, and the sandboxes that exist after the pool is
    closed.

    Raises ConfigError for the back end `local`, as a hostile player ends all other processes.
    """
    if backend == "local":
        raise ConfigError("--backend local isolates nothing, and hostile players play: take docker or bubblewrap")
    config = {"backend": backend, "spec": SPEC, "size": concurrency, "command_s": 20}
    renderer, slots = tiny_renderer(), asyncio.Semaphore(concurrency)
    async with open_backend(backend) as engine:
        async with EnvFactory(CodingEnv, config) as envs:

            async def episode(plan: Plan) -> Done:
                async with slots:
                    began = time.monotonic()
                    limits = Limits(score_s=300.0)
                    trajectory = await rollout(envs.make(), plan.task, plan.turns(), renderer=renderer, limits=limits)
                    done = Done(plan, trajectory, time.monotonic() - began)
                    done.tell()
                    return done

            began = time.monotonic()
            done = await asyncio.gather(*map(episode, plans(episodes)))
            seconds = time.monotonic() - began
            figures = envs.shared.figures()
        left = sum(found.owner == owners.current() for found in await engine.list())
    return done, seconds, figures, left


def busy() -> tuple[float, float]:
    """Seconds of CPU time that the machine has used, and has had in total, since it started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def report(backend: str, done: list[Done], seconds: float, left: int, cpu: float, concurrency: int) -> dict[str, Any]:
    """The results as JSON."""
    times: dict[str, list[float]] = {}
    for one in done:
        times.setdefault(one.plan.player, []).append(one.seconds)
    slowest = sorted(times, key=lambda player: -max(times[player]))[:6]
    print("slowest players:", ", ".join(f"{player} {max(times[player]):.1f} s" for player in slowest))
    return {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "backend": backend,
        "episodes": len(done),
        "wrong_rewards": sum(not one.right for one in done),
        "left_behind": left,
        "ended_by_their_own_commands": sum("sandbox_killed" in one.trajectory.info for one in done),
        "concurrency": concurrency,
        "seconds": round(seconds),
        "episodes_per_s": round(len(done) / seconds, 2),
        "cores_busy": round(cpu, 3),
        "limited_by": "the machine's cores" if cpu > 0.85 else "the number of sandboxes at a time",
        "mean_seconds": {player: round(fmean(times[player]), 2) for player in ("gold", "noop") if player in times},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--write", action="store_true", help="write the results to benchmarks/results")
    args = parser.parse_args()
    used, had = busy()
    done, seconds, figures, left = asyncio.run(play(args.backend, args.episodes, args.concurrency))
    used, had = busy()[0] - used, busy()[1] - had
    found = report(args.backend, done, seconds, left, used / had, args.concurrency)
    print("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in found.items()), figures, sep="\n")
    if args.write:
        file = ROOT / "benchmarks" / "results" / f"coding_{args.backend}.json"
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(bool(found["wrong_rewards"] or left))


if __name__ == "__main__":
    main()
