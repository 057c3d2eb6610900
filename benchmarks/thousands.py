"""Thousands of episodes in one process, or in several: `make bench-thousands`.

python -m benchmarks.thousands [--part garbage,many] [--episodes 10000] [--turns 11] [--processes 0]

- garbage: the share of CPU time of the garbage collector, with Python's settings and with those of agentrl's
  commands, at 200 and 1,000 episodes.
- many: episodes of 155 sampled and 309 observed tokens a turn, with an engine in this process. Every episode must end.
  With `--processes N` the episodes run in N processes, each with an engine, which return only counts.

The texts are fresh. They are repeated only after the tokenizer's cache has lost their words.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from agentrl._util import garbage
from agentrl.render import load_renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason
from benchmarks.fresh_episodes import InProcess, Script, play
from benchmarks.peers import load_tokenizer, save_parts, which_tokenizer

TEXTS = 2000
"""The number of turns whose texts are prepared."""
AT_ONCE = 1000
"""The number of episodes that a process plays at the same time."""


class _Endless(list[Any]):
    """Repeats its items without end."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self._next = cycle(items)

    def pop(self, *_: Any) -> Any:
        return next(self._next)


def endless(tokenizer: Any) -> Script:
    """The texts of engine and tool, for any number of turns."""
    script = Script(tokenizer, TEXTS)
    script.sampled, script.observed = _Endless(script.sampled), _Endless(script.observed)
    return script


class Collections:
    """Measures the CPU seconds of the garbage collector."""

    def __init__(self) -> None:
        self.seconds, self.longest, self._began = 0.0, 0.0, 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.process_time()
            return
        took = time.process_time() - self._began
        self.seconds, self.longest = self.seconds + took, max(self.longest, took)


def collected(turns: int) -> Iterator[dict[str, Any]]:
    """Measure both settings in turn, for each number of episodes."""
    tokenizer = load_tokenizer()
    renderer, script, python = load_renderer(tokenizer), endless(tokenizer), gc.get_threshold()
    asyncio.run(play(renderer, script, 20, turns))
    for episodes in (200, 1000):
        for name in ("Python's", "agentrl's", "Python's", "agentrl's"):
            gc.unfreeze()
            gc.set_threshold(*python)
            gc.collect()
            if name == "agentrl's":
                garbage.claim_process()
                garbage._Collector.is_settled = False
                garbage.settle()
            watch = Collections()
            gc.callbacks.append(watch)
            began = time.process_time()
            asyncio.run(play(renderer, script, episodes, turns))
            spent = time.process_time() - began
            gc.callbacks.remove(watch)
            yield {
                "episodes": episodes,
                "settings": name,
                "ms a turn": round(1000 * spent / (episodes * turns), 3),
                "share": f"{100 * watch.seconds / spent:.1f} %",
                "longest ms": round(1000 * watch.longest, 1),
            }


def many(episodes: int, turns: int, processes: int) -> Iterator[dict[str, Any]]:
    """Play all episodes, in this process or in `processes` child processes."""
    parts = [episodes // max(processes, 1)] * max(processes, 1)
    parts[0] += episodes - sum(parts)
    began = time.perf_counter()
    if processes:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            found = pool.starmap(_played, [(part, turns) for part in parts])
    else:
        found = [_played(episodes, turns)]
    wall = time.perf_counter() - began
    stops = sum((Counter(one["stops"]) for one in found), Counter[str]())
    if sum(stops.values()) != episodes or set(stops) != {str(StopReason.MAX_TURNS)}:
        raise SystemExit(f"not every episode ended as it must: {dict(stops)}")
    cpu, playing = sum(one["cpu"] for one in found), max(one["wall"] for one in found)
    yield {
        "episodes": episodes,
        "turns": turns,
        "processes": processes or 1,
        "ended": sum(stops.values()),
        "wall s": round(wall, 1),
        "playing s": round(playing, 1),
        "CPU s": round(cpu, 1),
        "ms a turn": round(1000 * cpu / (episodes * turns), 3),
        "of the cores": f"{100 * cpu / playing / (os.cpu_count() or 1):.0f} %",
        "encode and decode": f"{100 * sum(one['tokenizer'] for one in found) / cpu:.0f} % of CPU",
        "garbage": f"{100 * sum(one['garbage'] for one in found) / cpu:.1f} % of CPU",
        "MB a process": round(max(one["mb"] for one in found)),
    }


def _played(episodes: int, turns: int) -> dict[str, Any]:
    """Play the episodes of a process. Returns the counts of results, and the cost."""
    from benchmarks.scale import _clocked

    tokenizer = load_tokenizer()
    renderer, script, watch = load_renderer(tokenizer), endless(tokenizer), Collections()
    garbage.claim_process()
    garbage.settle()
    gc.callbacks.append(watch)
    stops, inside = Counter[str](), _clocked()
    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(_in_waves(renderer, script, episodes, turns, stops))
    return {
        "stops": dict(stops),
        "wall": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "tokenizer": inside(),
        "garbage": watch.seconds,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def _in_waves(renderer: Any, script: Script, episodes: int, turns: int, stops: Counter[str]) -> None:
    for first in range(0, episodes, AT_ONCE):
        made: list[Trajectory] = await play(renderer, script, min(AT_ONCE, episodes - first), turns, InProcess(script))
        stops.update(str(trajectory.stop) for trajectory in made if len(trajectory.turns) == turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="garbage,many", help="parts, with commas between")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--processes", type=int, default=0, help="0: this one")
    given = parser.parse_args()
    which_tokenizer()
    rows = list[dict[str, Any]]()
    parts = given.part.split(",")
    for part in parts:
        print(f"\n{part}, at a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        found = collected(given.turns) if part == "garbage" else many(given.episodes, given.turns, given.processes)
        for row in found:
            print("  " + ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            rows.append({"part": part, "load": round(os.getloadavg()[0], 1), **row})
    save_parts("thousands", parts, rows)


if __name__ == "__main__":
    main()
