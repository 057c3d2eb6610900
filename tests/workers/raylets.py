# ruff: noqa: ASYNC110 - files and polls are how processes tell what they do
"""A driver on a Ray cluster of two nodes. The second node's raylet is killed again and again; see test_killed.py.

python raylets.py JOB FOLDER KILLS
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from pathlib import Path

import ray

from agentrl.workers import JobOrder, WorkerPool
from agentrl.workers.actors import ActorTransport
from tests.workers.ray_head import started

IN_FLIGHT = 200


async def main(job: str, folder: Path, kills: int) -> None:
    cluster = started(1, connect=True)
    node = cluster.add_node(num_cpus=1)  # a worker on each
    async with WorkerPool(transport=ActorTransport(), order=JobOrder(job, str(folder)), size=2) as pool:
        for number in range(kills):
            name = f"go{number}"
            asked = [asyncio.ensure_future(pool.play(pickle.dumps(("until", name)))) for _ in range(IN_FLIGHT)]
            while sum(seat.pending for seat in pool.seats) < IN_FLIGHT:
                await asyncio.sleep(0.01)
            os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
            while all(seat.ready for seat in pool.seats):
                await asyncio.sleep(0.05)
            (folder / name).touch()
            answers = await asyncio.gather(*asked)
            assert sum(bool(answer.lost) for answer in answers) == IN_FLIGHT / 2
            assert [answer.result[0] for answer in answers] == [name] * IN_FLIGHT
            assert max(len(answer.lost) for answer in answers) <= 1
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            cluster.worker_nodes.remove(node)
            node = cluster.add_node(num_cpus=1)
            while not all(seat.ready for seat in pool.seats):
                await asyncio.sleep(0.05)
    ray.shutdown()
    cluster.shutdown()
    print(f"{kills} kills, each of {IN_FLIGHT} requests answered once")


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
