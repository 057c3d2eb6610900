"""The process that is killed: episodes with delays and faults over a buffer, and a stand-in for the trainer.

The stand-in's weights remember what they learned: a list of the tasks and episodes of every update. A checkpoint holds
the weights and the buffer's state, and gets its name when it is complete. Weights have a name that depends on all that
they learned, so weights of a run that was rewound never have the name of the others. An episode carries the names of
the weights that sampled it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from agentrl import Env, InfraError, StepResult, StopReason, Task, Trajectory, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.rollout import TaskStream
from agentrl.rollout.loop.buffer import GroupBuffer, PendingGroup
from agentrl.rollout.loop.journal import Journal
from agentrl.types import Generation, Limits

FAULTS = Random()
"""What fails and how long things take; seeded in each process."""


class Faulty(Env):
    """Three turns; its reset and its steps take a while, and fail now and then."""

    deterministic = True

    async def reset(self, task: Task) -> str:
        await trouble()
        self.turns = 0
        return f"Task {task.id}."

    async def step(self, action: Any) -> StepResult:
        await trouble()
        self.turns += 1
        ended = self.turns == 3
        return StepResult(f"Turn {self.turns}.", reward=1.0 if ended else None, done=ended)


async def trouble() -> None:
    await asyncio.sleep(FAULTS.expovariate(1 / 0.004))
    if FAULTS.random() < 0.01:
        raise InfraError("the world is gone")


@dataclass(kw_only=True)
class Settings:
    folder: Path
    prompts: int
    group_size: int = 4
    batch: int = 8
    in_flight: int = 24
    checkpoint_every: int = 4
    staleness: int = 3
    journal: bool = True
    forgets_groups: bool = False
    """A defect: the checkpoint has the place in the data only, and not the groups that are not gone."""


@dataclass(kw_only=True)
class Weights:
    """What was learned: for each update, its groups as (epoch, task, [[episode, the weights that sampled it]])."""

    updates: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["w0"])
    """The name of the weights after each update."""

    def learn(self, groups: list[PendingGroup]) -> None:
        self.updates.append(
            [
                (
                    g.epoch,
                    g.task.id,
                    [(t.info["episode"], t.info["weights"]) for t in g.members if isinstance(t, Trajectory)],
                )
                for g in groups
            ]
        )
        text = json.dumps([self.names[-1], self.updates[-1]])
        self.names.append("w" + hashlib.sha256(text.encode()).hexdigest()[:12])


class Run:
    """One process of the run, from its newest checkpoint on."""

    def __init__(self, settings: Settings, renderer: Any) -> None:
        self.settings, self.renderer = settings, renderer
        journal = Journal(settings.folder / "journal.db") if settings.journal else None
        tasks = [Task(prompt=f"Task {i}.", id=str(i), seed=i) for i in range(settings.prompts)]
        self.buffer = GroupBuffer(TaskStream(tasks, 0, epochs=1), settings.group_size, journal=journal)
        self.weights = Weights()
        self.engine = ScriptedEngine(self.turn, renderer, seconds=0.002)
        self.ready: list[PendingGroup] = []
        self.stopping: set[int] = set()
        """Groups whose episodes are to be aborted."""
        self.log = os.open(settings.folder / "episodes.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        """A letter for each episode that begins, and for each that an earlier try has left."""

    @property
    def version(self) -> int:
        return len(self.weights.updates)

    def turn(self, ids: Any) -> Generation:
        tokens = self.renderer.encode({"role": "assistant", "content": "so"})
        return Generation(tokens, [-0.5] * len(tokens), "stop", weight_version=str(self.version))

    async def run(self) -> None:
        self.restore()
        playing: set[asyncio.Task[None]] = set()
        while True:
            while len(playing) < self.settings.in_flight and (group := self.buffer.take(self.version)) is not None:
                playing.add(asyncio.create_task(self.play_group(group)))
            if len(self.ready) >= self.settings.batch or (self.ready and not playing):
                await self.train()
            elif playing:
                await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            else:
                break
            for task in [task for task in playing if task.done()]:
                playing.remove(task)
                task.result()
        self.checkpoint()

    async def train(self) -> None:
        groups, self.ready = self.ready[: self.settings.batch], self.ready[self.settings.batch :]
        old = [group for group in groups if self.version - group.born > self.settings.staleness]
        for group in old:
            self.buffer.put_back(group)
        groups = [group for group in groups if group not in old]
        if groups:
            await asyncio.sleep(FAULTS.expovariate(1 / 0.01))  # episodes are played meanwhile
            self.weights.learn(groups)
            self.buffer.trained(self.version, groups)
        if FAULTS.random() < 0.3:
            self.stopping = set(FAULTS.sample(range(self.settings.prompts), self.settings.prompts // 4))
        if groups and self.version % self.settings.checkpoint_every == 0:
            self.checkpoint()

    async def play_group(self, group: PendingGroup) -> None:
        members = await asyncio.gather(*(self.play(group, index) for index in range(len(group.members))))
        self.stopping.discard(group.number)
        ended = [member for member in members if isinstance(member, Trajectory)]
        if len(ended) == len(members):
            self.buffer.finished(group, ended)
            self.ready.append(group)
        else:
            self.buffer.put_back(group, members)

    async def play(self, group: PendingGroup, index: int) -> Trajectory | None:
        """An episode. None: its world failed, or it was aborted, and it is to be played again."""
        member = group.members[index]
        os.write(self.log, b"p" if member is None else b"r")
        if isinstance(member, Trajectory):
            return member

        def note(trajectory: Trajectory) -> None:
            names = [self.weights.names[int(version)] for version in trajectory.turns[-1].weight_versions]
            trajectory.info.setdefault("weights", []).extend(names)

        hooks = EpisodeHooks(aborted=lambda: group.number in self.stopping, on_turn=note)
        trajectory = await run_episode(
            Faulty(),
            group.task,
            engine=self.engine,
            renderer=self.renderer,
            options=EpisodeOptions(limits=Limits(turns=5)),
            session_id=f"{group.number}-{index}",
            hooks=hooks,
        )
        if trajectory.stop is StopReason.ABORTED or not trajectory.is_valid:
            return None
        trajectory.info["episode"] = os.urandom(6).hex()
        self.buffer.keep(group, index, trajectory)
        return trajectory

    def checkpoint(self) -> None:
        state = self.buffer.state()
        target = self.settings.folder / f"step_{self.version:06d}.json"
        unfinished = target.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"weights": vars(self.weights), "state": state}))
        unfinished.replace(target)
        self.buffer.saved(state)

    def restore(self) -> None:
        found = newest(self.settings.folder)
        if found is not None:
            self.weights = Weights(**found["weights"])
            state = found["state"]
            if self.settings.forgets_groups:
                state["groups"] = []
            self.buffer.restore(state)


def newest(folder: Path) -> Any:
    """What the newest checkpoint holds; None without one."""
    files = sorted(folder.glob("step_*.json"))
    return json.loads(files[-1].read_text()) if files else None


def main(settings: Settings, renderer: Any, seed: int) -> None:
    """Run to the end of the data."""
    FAULTS.seed(seed)

    async def run() -> None:
        await Run(settings, renderer).run()

    asyncio.run(run())
