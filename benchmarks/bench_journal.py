"""What the journal costs a rollout loop: the same groups with a journal and without.

python benchmarks/bench_journal.py [--groups 150] [--rounds 5]

Groups of eight episodes of five turns, 128 episodes at once. Each turn has 400 sampled tokens, and the Env answers with
100 words. First on an engine that takes half a second for a turn, eight times as fast as a real one: how long the
rollout lasts. Then on one that answers at once, so that the loop has nothing to wait for, the worst case: the CPU time
of the event loop's thread, and of the process, which includes the thread that writes. Rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeAlias

from agentrl import Env, StepResult, Task
from agentrl.engine import ScriptedEngine
from agentrl.env.factory import EnvFactory
from agentrl.episode.options import EpisodeOptions
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.render.base import Renderer
from agentrl.rollout import Rollout, TaskStream, run_groups
from agentrl.rollout.buffer import GroupBuffer
from agentrl.rollout.journal import Journal
from agentrl.types import Action, Generation, Limits

TURNS, TOKENS, SIZE, AT_ONCE = 5, 400, 8, 128
Times: TypeAlias = list[float]


class Talk(Env):
    """Answers each turn with a hundred words."""

    async def step(self, action: Action) -> StepResult:
        return StepResult("word " * 100, reward=1.0)


async def play(rollout: Rollout, tasks: Sequence[Task], journal: Journal | None) -> Times:
    """Seconds on the clock, of the loop's thread, and of the process."""
    buffer = GroupBuffer(TaskStream(tasks, 0, epochs=1), SIZE, journal=journal)
    gc.collect()
    clocks, step = (time.monotonic, time.thread_time, time.process_time), 0
    began = [clock() for clock in clocks]
    while True:
        taken = [group for group in (buffer.take(step) for _ in range(AT_ONCE // SIZE)) if group is not None]
        if not taken:
            break
        step += 1
        played = await run_groups(
            rollout,
            [group.task for group in taken],
            SIZE,
            step=step,
            keep=lambda trajectory, seat, taken=taken: buffer.keep(taken[seat[0]], seat[1], trajectory),  # type: ignore[misc]
        )
        for group, trajectories in zip(taken, played, strict=True):
            buffer.finished(group, trajectories)
        buffer.trained(step, taken)
        buffer.state()
    if journal is not None:
        journal.flush()
    return [clock() - start for clock, start in zip(clocks, began, strict=True)]


def rollout_of(renderer: Renderer, seconds: float) -> Rollout:
    tokens = [*renderer.encode({"role": "assistant", "content": "so " * TOKENS})]
    said = Generation(tokens, [-0.5] * len(tokens), "stop", weight_version="0")
    engine = ScriptedEngine(lambda ids: said, renderer, seconds=seconds)
    options = EpisodeOptions(limits=Limits(turns=TURNS))
    return Rollout(envs=EnvFactory(Talk), engine=engine, renderer=renderer, options=options)


async def compare(rollout: Rollout, groups: int, rounds: int) -> tuple[Times, Times]:
    """The medians without a journal and with one."""
    tasks = [Task(prompt=f"Talk {i}.", id=str(i)) for i in range(groups)]
    without, kept = list[Times](), list[Times]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            without.append(await play(rollout, tasks, None))
            journal = Journal(Path(folder, f"{number}.db"))
            kept.append(await play(rollout, tasks, journal))
            journal.close()
    plain, journaled = ([median(times) for times in zip(*found, strict=True)] for found in (without, kept))
    return plain, journaled


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    renderer, episodes = load_renderer(load_tokenizer("tiny")), given.groups * SIZE
    await play(rollout_of(renderer, 0.0), [Task(prompt="Talk.", id=str(i)) for i in range(20)], None)
    print(f"{episodes} episodes of {TURNS} turns of {TOKENS} tokens, median of {given.rounds} rounds")
    for what, seconds, shown in (
        ("half a second a turn", 0.5, [("lasts", 0)]),
        ("no time at all", 0.0, [("loop", 1), ("process", 2)]),
    ):
        plain, kept = await compare(rollout_of(renderer, seconds), given.groups, given.rounds)
        for name, at in shown:
            one, other = (1000 * times[at] / episodes for times in (plain, kept))
            more = f"{100 * (kept[at] / plain[at] - 1):+5.1f} % ({other - one:+.2f} ms)"
            print(f"  {what:21} {name:8} {one:6.2f} ms an episode, with a journal {more}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
