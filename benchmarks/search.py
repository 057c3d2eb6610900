"""Search-R1's environment over real passages and questions: scripted searchers' exact match, episodes a second.

    python -m benchmarks.search FOLDER            # corpus.jsonl and qa.jsonl; 256 episodes in flight; --write
    python -m benchmarks.search FOLDER --kills 5  # the server is killed (SIGKILL) and started again 5 times

The searchers know the right answers, and give an answer only if a passage contains it. So their exact match tells how
many questions the retriever can answer. "question" searches once, for the question. "titles" also searches for the
titles of the supporting passages, which a model would have to discover, and "tools" does the same by tool calls. For an
answer "yes", any passage with this word counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl import EnvFactory, Task, Trajectory
from agentrl.testing import rollout, tiny_renderer
from agentrl.types import Limits
from agentrl_envs.search_r1 import SearchR1, make_row, searcher, tool_searcher

ROOT = Path(__file__).resolve().parent.parent
PAPER = Limits(turns=4)
"""The paper's limits, but observations are not cut to 500 tokens: the tokenizer here spells most words, so 500 tokens
are less text than with a model's tokenizer."""
IN_FLIGHT = 256


class Server:
    """`agentrl retriever` in a separate process. Each restart uses the same port."""

    def __init__(self, corpus: Path) -> None:
        self.corpus, self.port, self.url, self.kills = corpus, "0", "", 0

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentrl", "retriever", str(self.corpus), "--port", self.port),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        self.url = line.partition(" at ")[2].partition(",")[0]
        self.port = self.url.rpartition(":")[2].partition("/")[0]

    async def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        await self.process.communicate()

    async def die_and_return(self) -> None:
        await self.stop(signal.SIGKILL)
        self.kills += 1
        await self.start()


@asynccontextmanager
async def serving(corpus: Path) -> AsyncIterator[Server]:
    server = Server(corpus)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def questions(folder: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The questions of a folder, each with the titles of the passages that support its answer."""
    names = {}
    with (folder / "corpus.jsonl").open(encoding="utf-8") as corpus:
        for row in map(json.loads, corpus):
            names[row["id"]] = row["contents"].partition("\n")[0].strip('"')
    with (folder / "qa.jsonl").open(encoding="utf-8") as asked:
        for qa in map(json.loads, asked):
            yield qa, qa.get("supporting_titles") or [names[one] for one in qa.get("supporting_ids", ())]


def tasks_of(folder: Path, *, titles: bool, form: str) -> list[Task]:
    found = []
    for qa, known in questions(folder):
        extra = {"searches": [qa["question"], *(known if titles else ())]}
        row = make_row(qa["question"], qa["golden_answers"], source=qa["source"], extra=extra, form=form)  # type: ignore[arg-type]
        metadata = {"data_source": row["data_source"], "extra_info": extra}
        found.append(Task(prompt=row["prompt"], label=row["reward_model"], metadata=metadata, id=qa["id"]))
    return found


async def play(
    tasks: Sequence[Task], url: str, form: str, server: Server | None = None, kills: int = 0
) -> dict[str, Any]:
    """Play all episodes, with a limited number at the same time. Kills the server `kills` times at equal intervals."""
    slots, done, renderer = asyncio.Semaphore(IN_FLIGHT), list[Trajectory](), tiny_renderer()
    marks = {len(tasks) * (n + 1) // (kills + 1): asyncio.Event() for n in range(kills)}
    player = searcher if form == "tags" else tool_searcher
    async with EnvFactory(SearchR1, {"retriever": url, "form": form, "timeout": 120.0}) as envs:

        async def episode(task: Task) -> None:
            async with slots:
                done.append(await rollout(envs.make(), task, player(task), renderer=renderer, limits=PAPER))
            if len(done) in marks:
                marks[len(done)].set()

        async def killer() -> None:
            for mark in marks.values():
                await mark.wait()
                assert server is not None
                await server.die_and_return()

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(killer())
            for task in tasks:
                group.create_task(episode(task))
        return figures(done, time.perf_counter() - begun)


def figures(done: Sequence[Trajectory], seconds: float) -> dict[str, Any]:
    by_source = defaultdict[str, list[float]](list)
    for trajectory in done:
        by_source[str(trajectory.task.metadata["data_source"])].append(trajectory.reward or 0.0)
    searches = sum(trajectory.info.get("searches", 0) for trajectory in done)
    return {
        "exact_match": {source: round(fmean(rewards), 3) for source, rewards in sorted(by_source.items())},
        "exact_match_of_all": round(fmean(reward for rewards in by_source.values() for reward in rewards), 3),
        "episodes": len(done),
        "failed": sum(trajectory.failure is not None for trajectory in done),
        "empty": sum("<information></information>" in turn.raw for t in done for turn in t.turns),
        "searches": searches,
        "seconds": round(seconds, 1),
        "episodes_per_s": round(len(done) / seconds, 1),
        "searches_per_s": round(searches / seconds, 1),
    }


async def measure(folder: Path, kills: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "corpus.jsonl"  # its index is made beside it
        shutil.copy(folder / "corpus.jsonl", corpus)
        async with serving(corpus) as server:
            for name, titles, form in (("question", False, "tags"), ("titles", True, "tags"), ("tools", True, "tools")):
                tasks = tasks_of(folder, titles=titles, form=form)
                found[name] = await play(tasks, server.url, form)
                print(json.dumps({name: found[name]}), flush=True)
            if kills:
                tasks = tasks_of(folder, titles=True, form="tags")
                found["killed"] = await play(tasks, server.url, "tags", server, kills) | {"kills": server.kills}
                print(json.dumps({"killed": found["killed"]}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder with corpus.jsonl and qa.jsonl")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/search.json")
    args = parser.parse_args()
    found = asyncio.run(measure(args.folder, args.kills))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.0f}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result = {"date": date.today().isoformat(), "machine": machine, "in_flight": IN_FLIGHT, "peak_mb": peak} | found
    if args.write:
        (ROOT / "benchmarks/results/search.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
