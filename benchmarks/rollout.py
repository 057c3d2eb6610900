"""The rollout loop under load: `make bench-rollout` (SLIME_SRC=/path/to/slime for the comparison).

    python -m benchmarks.rollout [--part flight,tail,evaluation] [--scale 1.0] [--out FILE]

Engines and environments only wait, for times that a seed determines, so the loop alone is measured. Flight and
evaluation use the clock of `own_time`, which does not count the time of other programs. The long tail runs in real
time, with all rollouts at once, because slime's rollout has a thread.

- flight: 2,000 episodes in flight in one process. Lag of the event loop, memory an episode, and throughput compared
  with the throughput that the latencies alone allow.
- tail: 1 % of the episodes take 50 times as long. Measures the share of time in which a trainer waits: with whole
  rollouts in turn, slime's fully-async rollout, and this loop with each policy for stale groups; groups of 8, staleness
  bound 2, the same slots for all. Capacity is the rate at which slots can play, divided by the trainer's rate.
- evaluation: 200 prompts beside training, with a quarter of the slots. Throughput of training during and without it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, quantiles
from types import ModuleType, SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl import Env, EnvFactory, Generation, SamplingParams, StepResult, Task
from agentrl.engine import ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.models import load_tokenizer
from agentrl.render import Renderer, load_renderer
from agentrl.rollout import Rollout, TaskStream, evaluate
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.rollout.loop.group_loop import GroupLoop, Stale
from agentrl.rollout.loop.loop_drawer import LoopDrawer, LoopSettings
from agentrl.rollout.loop.slots import EpisodeSlots
from benchmarks import own_time

console = Console(highlight=False, width=120)
GROUP = 8
GENERATE_S, TOOL_S = 8.0, 1.0
"""Mean seconds of a turn. GENERATE_S: some hundred tokens from a busy server. TOOL_S: a call of a tool."""
TURNS = 4
SLOW_SHARE, SLOWER = 0.01, 50
STALENESS = 2


class WaitingEngine(ScriptedEngine):
    """An engine that responds after 0.4 to 3 times the mean time. The episode's seed determines the time."""

    def __init__(self, renderer: Renderer, seconds: float) -> None:
        super().__init__(lambda ids: "unused", renderer)
        tokens = renderer.encode({"role": "assistant", "content": "I have looked. " * 20})
        self._said = Generation(tokens, [scripted_log_prob(token) for token in tokens], "stop", weight_version="0")
        self.mean_s, self.waited, self.trained, self.in_flight, self.most = seconds, 0.0, 0.0, 0, 0

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        draw = random.Random(sampling_params.get("sampling_seed", 0) * 31 + len(input_ids))
        seconds = self.mean_s * min(max(draw.gammavariate(4, 0.25), 0.2), 4)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.in_flight -= 1
        self.waited += seconds
        self.trained += seconds * session_id.startswith("train")
        return self._said


class WaitingTool(Env):
    """An Env whose steps take some time. The reward is 0 or 1 at random."""

    mean_s = TOOL_S
    waited = 0.0

    async def reset(self, task: Task) -> str:
        self.turns = 0
        return str(task.prompt)

    async def step(self, action: Any) -> StepResult:
        seconds = self.mean_s * self.rng.uniform(0.5, 1.5)
        await asyncio.sleep(seconds)
        WaitingTool.waited += seconds
        self.turns += 1
        return StepResult("Found: " + "something new to read. " * 30, done=self.turns == TURNS)

    async def score(self, trajectory: Any) -> float:
        return float(self.rng.random() < 0.5)


@dataclass
class Lag:
    """Measures how late the event loop runs a timer."""

    every_s: float = 0.01
    late: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        while True:
            due = asyncio.get_running_loop().time() + self.every_s
            await asyncio.sleep(self.every_s)
            self.late.append(asyncio.get_running_loop().time() - due)

    def p99_ms(self) -> float:
        return 1000 * quantiles(self.late, n=100)[98]


def drawer_of(renderer: Renderer, slots: int, *, groups: int, seconds: float = GENERATE_S) -> LoopDrawer:
    rollout = Rollout(
        envs=EnvFactory(WaitingTool), engine=WaitingEngine(renderer, seconds), renderer=renderer, concurrency=slots
    )
    tasks = [Task(prompt=f"Question {i}. " * 20, id=str(i)) for i in range(1000)]
    buffer = GroupBuffer(TaskStream(tasks, 0), GROUP)
    return LoopDrawer(rollout, buffer, LoopSettings(groups=groups, staleness=10**6))


def resident() -> int:
    """The resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


async def flight(scale: float, slots: int = 2000) -> dict[str, Any]:
    """Play many episodes at once. A step trains a tenth of them, and the trainer takes no time. Measured after the
    first episodes have ended."""
    renderer = load_renderer(load_tokenizer("tiny"))
    drawer = drawer_of(renderer, slots, groups=max(slots // GROUP // 10, 1), seconds=GENERATE_S * scale)
    engine = drawer.player.rollout.engine
    assert isinstance(engine, WaitingEngine)
    WaitingTool.mean_s, WaitingTool.waited = TOOL_S * scale, 0.0
    before, one = resident(), TURNS * (GENERATE_S + TOOL_S) * scale

    async def train() -> None:
        step = 0
        while True:
            step += 1
            drawn = await drawer.draw(step)
            drawer.buffer.trained(step, drawn.pending)
            drawer.loop.advance(step)

    drawer.begin(0, 0)
    training = asyncio.create_task(train())
    await asyncio.sleep(1.5 * one)
    lag = Lag()
    watching = asyncio.create_task(lag.watch())
    began, cpu, waited = asyncio.get_running_loop().time(), time.process_time(), engine.waited + WaitingTool.waited
    await asyncio.sleep(1.5 * one)
    seconds, busy = asyncio.get_running_loop().time() - began, time.process_time() - cpu
    waited = engine.waited + WaitingTool.waited - waited
    most = resident() - before
    watching.cancel()
    training.cancel()
    await asyncio.wait([watching, training])
    await drawer.stop()
    return {
        "episodes": slots,
        "lag_p99_ms": lag.p99_ms(),
        "lag_max_ms": 1000 * max(lag.late),
        "kb_an_episode": most / slots / 1024,
        "throughput_of_latency": waited / (slots * seconds),
        "turns_per_second": waited / ((GENERATE_S + TOOL_S) * scale) / seconds,
        "cpu_share": busy / seconds,
    }


# Long tail


@dataclass(eq=False)
class SleepGroup:
    number: int
    born: int
    seconds: Sequence[float]


@dataclass
class SleepSource:
    """Groups of episodes that only wait. The number of an episode determines its duration."""

    unit: float
    dropped: Counter[str] = field(default_factory=Counter)
    waiting: list[SleepGroup] = field(default_factory=list)
    taken: int = 0

    def take(self, version: int) -> SleepGroup:
        if self.waiting:
            group = self.waiting.pop(0)
            group.born = version
            return group
        self.taken += 1
        return SleepGroup(self.taken, version, episode_seconds(self.taken, self.unit))

    def put_back(self, group: SleepGroup, *, anew: bool) -> None:
        self.waiting.append(group)

    def drop(self, group: SleepGroup, reason: str) -> None:
        self.dropped[reason] += 1


def episode_seconds(group: int, unit: float) -> list[float]:
    draw = random.Random(group)
    return [
        unit * draw.uniform(0.5, 1.5) * (SLOWER if draw.random() < SLOW_SHARE else 1) for _ in range(GROUP)
    ]  # fmt: skip


def usual_seconds(unit: float) -> float:
    """The mean seconds of an episode."""
    return unit * (1 - SLOW_SHARE + SLOW_SHARE * SLOWER)


@dataclass(frozen=True)
class Load:
    """A trainer that takes `groups` groups a step, and slots that can play `capacity` times as many episodes."""

    capacity: float
    groups: int
    slots: int
    steps: int
    unit: float
    skipped: int = 5

    @property
    def train_s(self) -> float:
        return self.capacity * self.groups * GROUP * usual_seconds(self.unit) / self.slots


@dataclass
class Waits:
    """Measures how long the trainer waits."""

    load: Load
    waited: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)

    async def steps(
        self,
        take: Callable[[int], Awaitable[Sequence[int]]],
        learned: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Train steps. `take` returns the versions of the weights with which the groups of a step began."""
        for step in range(1, self.load.steps + 1):
            began = time.perf_counter()
            born = await take(step)
            waited = time.perf_counter() - began
            await asyncio.sleep(self.load.train_s)
            learned(step)
            if step > self.load.skipped:
                self.waited.append(waited)
                self.took.append(time.perf_counter() - began)
                self.ages += [step - 1 - version for version in born]

    def result(self, name: str, dropped: Mapping[str, int], taken: int) -> dict[str, Any]:
        return {
            "rollout": name,
            "capacity": self.load.capacity,
            "trainer_waits": sum(self.waited) / sum(self.took),
            "age_mean": mean(self.ages),
            "age_max": max(self.ages),
            "dropped_share": sum(dropped.values()) / max(taken, 1),
        }


def sleep_loop(load: Load, **values: Any) -> tuple[GroupLoop[SleepGroup], SleepSource]:
    source, slots, unstarted = SleepSource(load.unit), EpisodeSlots(load.slots), Counter[int]()

    async def member(group: SleepGroup, seconds: float) -> None:
        async with slots.one():
            unstarted[group.number] -= 1
            await asyncio.sleep(seconds)

    async def play(group: SleepGroup) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for seconds in group.seconds:
                    tasks.create_task(member(group, seconds))
        finally:
            del unstarted[group.number]

    class Claiming(SleepSource):
        def take(self, version: int) -> SleepGroup:
            group = super().take(version)
            unstarted[group.number] = GROUP
            return group

    source = Claiming(load.unit)
    loop: GroupLoop[SleepGroup] = GroupLoop(
        source, play, groups=load.groups, hungry=lambda: slots.room("train") > unstarted.total(), **values
    )
    slots.on_free = loop.fill
    return loop, source


async def tail_sync(load: Load) -> dict[str, Any]:
    loop, source = sleep_loop(load)
    waits = Waits(load)

    async def take(step: int) -> Sequence[int]:
        return [group.born for group in await loop.collect(step - 1, load.groups)]

    await waits.steps(take)
    return waits.result("whole rollouts, in turn", source.dropped, source.taken)


async def tail_ours(load: Load, stale: Stale) -> dict[str, Any]:
    loop, source = sleep_loop(load, staleness=STALENESS, stale=stale)
    waits = Waits(load)
    loop.begin(0, 0)

    async def take(step: int) -> Sequence[int]:
        return [group.born for group in await loop.take(step)]

    await waits.steps(take, loop.advance)
    await loop.stop()
    return waits.result(f"agentrl, fully-async, stale: {stale}", source.dropped, source.taken)


async def tail_slime(load: Load, source_folder: str, poll_s: float) -> dict[str, Any]:
    """Measure slime's worker, with episodes that wait for a slot and sleep. slime polls once a second. As steps are
    short here, a smaller `poll_s` stands for slime with steps of a minute."""
    rollout = import_slime(source_folder)
    started, waits, version = Counter[int](), Waits(load), [0]
    slots: dict[int, asyncio.Semaphore] = {}
    status = SimpleNamespace(ABORTED="aborted")

    async def generate_group(args: Any, group: list[Any], *, sampling_params: Any, evaluation: bool) -> list[Any]:
        slot = slots.setdefault(id(asyncio.get_running_loop()), asyncio.Semaphore(load.slots))
        group[0].born = version[0]

        async def one(seconds: float) -> None:
            async with slot:
                await asyncio.sleep(seconds)

        await asyncio.gather(*[one(seconds) for seconds in episode_seconds(group[0].index, load.unit)])
        return group

    class Data:
        def get_samples(self, count: int) -> list[list[Any]]:
            started[0] += 1
            return [[SimpleNamespace(index=started[0], status="completed") for _ in range(GROUP)]]

    rollout.generate_and_rm_group = generate_group  # type: ignore[attr-defined]
    rollout.Sample = SimpleNamespace(Status=status)  # type: ignore[attr-defined]
    args = SimpleNamespace(
        sglang_server_concurrency=load.slots, rollout_batch_size=load.groups, rollout_global_dataset=True
    )
    data = Data()
    rollout._get_global_worker(args, data).poll_interval = poll_s

    async def take(step: int) -> Sequence[int]:
        found = await asyncio.to_thread(rollout.generate_rollout_fully_async, args, step - 1, data)
        return [group[0].born for group in found]

    def learned(step: int) -> None:
        version[0] = step

    await waits.steps(take, learned)
    await asyncio.to_thread(rollout._stop_global_worker)
    return waits.result(f"slime, fully-async, polls every {poll_s:.3f} s", {}, started[0])


def import_slime(folder: str) -> ModuleType:
    """slime's module, with stubs for the modules that need a GPU's packages. It polls once in a second."""
    import importlib

    for name, values in {
        "slime.rollout.sglang_rollout": {"GenerateState": lambda args: SimpleNamespace(sampling_params={})},
        "slime.utils.http_utils": {"get_rollout_num_engines": lambda args: 1},
        "slime.utils.types": {"Sample": None},
    }.items():
        stub = ModuleType(name)
        stub.__dict__.update({"generate_and_rm_group": None, **values})
        sys.modules[name] = stub
    sys.path.insert(0, folder)
    sys.modules.pop("slime.rollout.fully_async_rollout", None)
    return importlib.import_module("slime.rollout.fully_async_rollout")


async def tail(scale: float, *, steps: int = 30, groups: int = 32, slots: int = 64) -> list[dict[str, Any]]:
    """Run all loads at the same time, as they only sleep. The process has a single worker of slime, so its loads take
    turns."""
    unit, slime = 0.2 * scale, os.environ.get("SLIME_SRC")
    loads = [Load(capacity, groups, slots, steps, unit) for capacity in (1.25, 1.0)]
    runs = [tail_sync(load) for load in loads]
    runs += [tail_ours(load, stale) for load in loads for stale in ("drop", "retry", "mask")]

    async def of_slime() -> list[dict[str, Any]]:
        polls = [(load, poll_s) for load in loads for poll_s in (1.0, load.train_s / 60)]
        return [await tail_slime(load, slime, poll_s) for load, poll_s in polls] if slime else []

    own, others = await asyncio.gather(asyncio.gather(*runs), of_slime())
    found = [*own, *others]
    return sorted(found, key=lambda row: (-row["capacity"], row["rollout"]))


# Evaluation beside training


async def evaluation(
    scale: float, *, slots: int = 200, prompts: int = 200, share: float = 0.25, window_s: float = 80.0
) -> dict[str, Any]:
    """Throughput of training with and without an evaluation. The trainer takes no time, so its throughput is the mean
    number of its requests in flight."""
    renderer = load_renderer(load_tokenizer("tiny"))
    WaitingTool.mean_s = TOOL_S * scale
    drawer = drawer_of(renderer, slots, groups=2, seconds=4.0 * scale)
    drawer.begin(0, 0)
    engine = drawer.player.rollout.engine
    assert isinstance(engine, WaitingEngine)

    async def train() -> None:
        step = 0
        while True:
            step += 1
            await drawer.draw(step)
            drawer.loop.advance(step)

    training = asyncio.create_task(train())
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(window_s * scale / 4)  # until it flows
    marks = [(clock(), engine.trained)]
    await asyncio.sleep(window_s * scale)
    marks.append((clock(), engine.trained))
    with drawer.slots.reserve(round(share * slots)):
        found = await evaluate(drawer.evaluating, [Task(prompt=f"Held out {i}", id=str(i)) for i in range(prompts)])
    marks.append((clock(), engine.trained))
    training.cancel()
    await asyncio.wait([training])
    await drawer.stop()
    alone, beside = [(to[1] - at[1]) / (to[0] - at[0]) for at, to in pairwise(marks)]
    return {
        "share": share,
        "prompts": len(found.trajectories),
        "evaluation_s": marks[2][0] - marks[1][0],
        "requests_in_flight_alone": alone,
        "requests_in_flight_beside": beside,
        "throughput_kept": beside / alone,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table(*rows[0])
    for row in rows:
        shown.add_row(*[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()])
    return shown


PARTS: Mapping[str, Callable[[float], Coroutine[Any, Any, Any]]] = {
    "flight": flight,
    "tail": tail,
    "evaluation": evaluation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=",".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="of all times; less makes the loop's own share larger")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "rollout.json")
    args = parser.parse_args()
    gc.freeze()
    gc.set_threshold(20000, 50, 100)  # as docs/internals advises for a process of its own
    found = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    for name in args.part.split(","):
        before = os.getloadavg()[0]
        result = (asyncio.run if name == "tail" else own_time.run)(PARTS[name](args.scale))
        console.print(table(result if isinstance(result, list) else [result]))
        console.print(f"{name}: load {before:.1f} to {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        found[name] = {"load": os.getloadavg()[0], "cores": os.cpu_count(), "result": result}
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
