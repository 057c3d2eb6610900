"""The CPU time of workers: a turn with 1 and 2 workers compared with a single process, and an episode in the driver.

python -m benchmarks.workers [--quick] [--ray]        (`make bench-workers`; --ray: as Ray actors, too)

BENCH_TOKENIZER names the tokenizer of a Qwen model, by its folder. Without it, a local tokenizer is used, or a small
tokenizer that makes three times as many tokens. The first line of output tells which.

Episodes have 11 turns with about 150 sampled and 300 observed tokens a turn, and every text is fresh. The engine is a
script in the process that plays. The benchmark measures CPU time, of this process and of each worker, from /proc. The
contenders play in turn, round by round. The results are medians. The load is printed, as the ratios vary with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import median
from typing import Any

from agentrl import Env, EnvFactory, EpisodeOptions, Limits, Task, tool
from agentrl.engine.scripted import ScriptedEngine
from agentrl.render import load_renderer
from agentrl.rollout import Rollout, run_groups
from agentrl.rollout.play.remote import EpisodeOrder, EpisodeWorkers, with_workers
from agentrl.types import Message
from benchmarks.peers import load_tokenizer, save, which_tokenizer

TURNS = 11
SAMPLED, OBSERVED = 110, 220
"""The number of words. SAMPLED: of a thought, about 150 of Qwen's tokens. OBSERVED: of a result, about 300 tokens."""
EPISODES, ROUNDS = 32, 5
_TICKS = os.sysconf("SC_CLK_TCK")


def fresh(seed: str, words: int) -> str:
    """A text of `words` words that no tokenizer has cached."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(chance.choices(letters, k=chance.randint(2, 6))) for _ in range(words))


class Fresh(Env):
    """An Env whose tool returns a fresh text for each search."""

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia.

        Args:
            query: what to look for
        """
        return fresh(f"{self.task.id} {query[:20]}", OBSERVED)

    async def score(self, trajectory: Any) -> float:
        return float(trajectory.answer == "done")


def say(ids: Sequence[int]) -> str | Message:
    """The model's turn: a search with a fresh thought. The run's limit ends the episode."""
    seed = f"{len(ids)} {sum(ids[-50:])}"
    query = {"query": fresh(f"q {seed}", 4)}
    calls = [{"id": "1", "type": "function", "function": {"name": "search", "arguments": query}}]
    return {"role": "assistant", "content": fresh(seed, SAMPLED), "tool_calls": calls}


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def pids_of(rollout: Rollout) -> list[int]:
    workers = rollout.workers
    pool = workers.pool if isinstance(workers, EpisodeWorkers) else None
    return [] if pool is None else [pid for seat in pool._seats if (pid := seat.pid) is not None]


def on_ray(count: int, rollout: Rollout, order: EpisodeOrder) -> AbstractAsyncContextManager[Rollout]:
    """The rollout, with Ray actors as its workers."""
    from agentrl.workers.actors import ActorTransport

    return with_workers(count, rollout, order, transport=ActorTransport)


async def measured(rollout: Rollout, episodes: int) -> tuple[float, float]:
    """CPU milliseconds of a turn in the processes that play, and of an episode in the driver."""
    tasks = [Task(prompt=fresh(f"{time.monotonic()} {i}", 60), id=str(i)) for i in range(episodes)]
    pids = pids_of(rollout)
    own, others = time.process_time(), sum(map(cpu_of, pids))
    groups = await run_groups(rollout, tasks, 1)
    own, others = time.process_time() - own, sum(map(cpu_of, pids)) - others
    turns = sum(len(group[0].turns) for group in groups)
    assert turns == TURNS * episodes, f"{turns} turns"
    return (others if pids else own) * 1000 / turns, own * 1000 / episodes


async def compare(episodes: int, rounds: int, *, ray: bool) -> dict[str, tuple[float, float]]:
    """Play all contenders in turn. Returns the median of each contender."""
    tokenizer = load_tokenizer()
    renderer, options = load_renderer(tokenizer), EpisodeOptions(limits=Limits(turns=TURNS))
    path = "benchmarks.workers:Fresh"
    here = Rollout(envs=EnvFactory(path), engine=ScriptedEngine(say, renderer), renderer=renderer, options=options)
    order = EpisodeOrder(
        env=path,
        env_config={},
        options=options,
        tokenizer=tokenizer,
        engine="scripted",
        engine_config={"turns": "benchmarks.workers:say"},
    )
    found: dict[str, list[tuple[float, float]]] = {}
    contenders = {"in process": 0, "1 worker": 1, "2 workers": 2}
    for number in range(rounds + 1):
        for name, count in contenders.items():
            ways = [(name, with_workers)] + ([(f"{name}, Ray", on_ray)] if ray and count else [])
            for label, way in ways:
                async with way(count, here, order) as rollout:
                    await measured(rollout, 8)  # word caches and memos of a process that has just begun
                    once = await measured(rollout, episodes)
                if number:
                    found.setdefault(label, []).append(once)
    return {name: (median(x for x, _ in times), median(y for _, y in times)) for name, times in found.items()}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers")
    parser.add_argument("--quick", action="store_true", help="a few episodes: does it run?")
    parser.add_argument("--ray", action="store_true", help="measure Ray actors, too")
    given = parser.parse_args(args)
    if given.ray:
        import ray

        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    which_tokenizer()
    print(f"load {os.getloadavg()[0]:.1f}; {TURNS} turns an episode")
    episodes, rounds = (4, 1) if given.quick else (EPISODES, ROUNDS)
    found = asyncio.run(compare(episodes, rounds, ray=given.ray))
    alone = found["in process"][0]
    print(f"{'':<18}{'ms a turn':>10}{'beside one':>12}{'driver, ms an episode':>23}")
    for name, (turn, driver) in found.items():
        print(f"{name:<18}{turn:>10.2f}{turn / alone:>11.2f}x{driver:>23.2f}")
    if not given.quick:
        rows = [{"played": name, "ms_a_turn": turn, "driver_ms": driver} for name, (turn, driver) in found.items()]
        save("workers", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
