"""A process that plays samples from a durable queue, as a node of slime 0.4 does. The tests kill it.

    python -m tests.slime.node QUEUE URL PARKING

It forks one such process for each number that it reads, the seed of that process's chance, and prints its id. So the
imports are done once.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import signal
import sqlite3
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import aiohttp

from agentrl import adapt
from agentrl.episode import parking
from agentrl.episode.saved import SavedEpisodes
from agentrl.episode.shared import load_renderer_once, loop_resources
from tests.slime.conftest import Sample as PlainSample
from tests.slime.conftest import slime_args

AT_ONCE = 8
PARAMS = {"temperature": 1.0, "max_new_tokens": 8000, "stop": None, "stop_token_ids": None}
ENV_FILE = Path(__file__).parent / "working_env.py"

STATE = SimpleNamespace(aborted=False)
HOST = ModuleType("nodehost.rollout.sglang_rollout")
HOST.GenerateState = lambda args: STATE


class Sample(PlainSample):
    """What the queue holds."""


Sample.__module__ = "nodehost.utils.types"
Sample.__qualname__ = "Sample"
TYPES = ModuleType("nodehost.utils.types")
TYPES.Sample = Sample
PACKAGES = [ModuleType(name) for name in ("nodehost", "nodehost.rollout", "nodehost.utils")]
sys.modules.update({module.__name__: module for module in (*PACKAGES, HOST, TYPES)})


class Queue:
    """Samples in SQLite. A sample is waiting, leased by a process, or done."""

    def __init__(self, file: str) -> None:
        self.db = sqlite3.connect(file, isolation_level=None, timeout=30)
        self.db.execute(
            "create table if not exists samples (id integer primary key, sample blob, state text default 'waiting', "
            "pid integer default 0, aborts integer default 0, leases integer default 0)"
        )

    def put(self, sample: Sample) -> None:
        self.db.execute("insert into samples (id, sample) values (?, ?)", (sample.index, pickle.dumps(sample)))

    def lease(self, count: int) -> list[Sample]:
        self.db.execute("begin immediate")
        rows = self.db.execute(
            "select id, sample from samples where state = 'waiting' order by random() limit ?", (count,)
        ).fetchall()
        for number, _ in rows:
            self.db.execute(
                "update samples set state = 'leased', pid = ?, leases = leases + 1 where id = ?", (os.getpid(), number)
            )
        self.db.execute("commit")
        return [pickle.loads(sample) for _, sample in rows]

    def publish(self, sample: Sample) -> None:
        """Give an aborted sample back, or finish one that has ended. Fails if it is not this process's."""
        aborted = sample.status is Sample.Status.ABORTED
        changed = self.db.execute(
            "update samples set sample = ?, state = ?, aborts = aborts + ? "
            "where id = ? and pid = ? and state = 'leased'",
            (pickle.dumps(sample), "waiting" if aborted else "done", aborted, sample.index, os.getpid()),
        )
        assert changed.rowcount == 1

    def left_by(self, pid: int) -> int:
        """What a process that died had leased waits again, as it was published last."""
        return self.db.execute(
            "update samples set state = 'waiting' where state = 'leased' and pid = ?", (pid,)
        ).rowcount

    def states(self) -> dict[str, int]:
        return dict(self.db.execute("select state, count(*) from samples group by state").fetchall())

    def samples(self) -> list[tuple[Sample, int]]:
        """All samples, and how often each was aborted."""
        rows = self.db.execute("select sample, aborts from samples order by id").fetchall()
        return [(pickle.loads(sample), aborts) for sample, aborts in rows]


async def _node(queue: Queue, url: str, parked: dict, seed: int) -> None:
    chance = random.Random(seed)
    args = slime_args(url, args={"partial_rollout": True, "mask_offpolicy_in_partial_rollout": False})
    args.agentrl = {"env": f"{ENV_FILE}:Working", "limits": {"turns": 100}, "parking": parked}
    async with aiohttp.ClientSession() as http:
        while set(queue.states()) != {"done"}:
            samples = queue.lease(AT_ONCE)
            STATE.aborted = False
            playing = [asyncio.create_task(_play(queue, args, sample)) for sample in samples]
            if not playing:
                await asyncio.sleep(0.05)
                continue
            await _saves(chance.randint(1, 10), playing)
            STATE.aborted = True
            if chance.random() < 0.5:  # else requests end by themselves
                await http.post(f"{url}/abort_request", json={"rid": "", "abort_all": True})
            await asyncio.gather(*playing)
    await loop_resources().close()


class CountedEpisodes(SavedEpisodes):
    """Counts what it writes."""

    written = 0

    def write(self, *args, **kwargs) -> None:
        super().write(*args, **kwargs)
        CountedEpisodes.written += 1


async def _saves(count: int, playing: list[asyncio.Task]) -> None:
    """Wait until so many turns are saved, or all episodes have ended. A loaded machine would not play a turn in a
    fixed time, and abort them again and again."""
    goal = CountedEpisodes.written + count
    while CountedEpisodes.written < goal and not all(task.done() for task in playing):  # noqa: ASYNC110 - a thread writes
        await asyncio.sleep(0.005)


async def _play(queue: Queue, args: SimpleNamespace, sample: Sample) -> None:
    queue.publish(await adapt(args, sample, PARAMS))


def main(file: str, url: str, parked: str) -> None:
    parking.SavedEpisodes = CountedEpisodes
    load_renderer_once("tiny", None, "{}", False)  # the children share it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(_node(Queue(file), url, json.loads(parked), int(line)))
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
