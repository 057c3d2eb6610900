"""How the CPU time of each public path grows with its work: exponents, each at most 1.15.

python -m benchmarks.growth [PATH ...]        (without a name: all; `--list` prints the names)

An exponent is the slope of CPU seconds over the size in a plot of logarithms, by least squares over four sizes or more
with a factor of at least eight. 1 is linear, 0 does not depend on the size. Each time is the least of three, as other
programs only add to a time. The inputs are written before the clock starts. `long_sessions` measures longer episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from agentrl import Env, EnvFactory, EpisodeOptions, Limits, Task, Trajectory, run_episode, tool
from agentrl.cli.check import _check_records
from agentrl.cli.compare import _compared, _open
from agentrl.cli.show import _print_list
from agentrl.engine import ScriptedEngine
from agentrl.monitor.metrics import RolloutMetrics
from agentrl.rollout import Rollout, load_tasks, run_groups
from agentrl.rollout.loop.journal import Journal
from agentrl.slime.check import check as slime_check
from agentrl.slime.check import read_command
from agentrl.testing import call, tiny_renderer
from agentrl.train.config import TrainConfig
from agentrl.train.records import RunRecords
from agentrl.train.rows import rows_to_learn
from agentrl.train.run_folder import RunFolder
from agentrl.trajectory.outline import Outline
from agentrl.types import Message
from agentrl.view.answers import PageAnswers
from agentrl.view.query import Query
from agentrl.view.sources import open_source
from benchmarks.long_sessions import READINGS, Loop, exponent, trajectory_of
from benchmarks.peers import save

BOUND = 1.15
ROUNDS = 3
EPISODES = 16
"""The number of episodes of a step in a run's folder."""

Work = Callable[[], object]
"""The work that is timed."""


@dataclass(frozen=True)
class Growth:
    """A public path."""

    sizes: Sequence[int]
    unit: str
    """The unit of the sizes."""
    prepare: Callable[[int, Path], Work]
    """Write the input of a size into a folder. Returns the work on the input."""

    def seconds(self, size: int) -> float:
        """The least CPU seconds of the work."""
        times = list[float]()
        for _ in range(ROUNDS):
            with TemporaryDirectory() as folder:
                work = self.prepare(size, Path(folder))
                gc.collect()
                start = time.process_time()
                with contextlib.redirect_stdout(io.StringIO()):
                    work()
                times.append(time.process_time() - start)
        return min(times)


def reading(name: str) -> Growth:
    return Growth((125, 250, 500, 1000), "turns", lambda turns, _: partial(READINGS[name], trajectory_of(turns)))


def requests(size: int, _: Path) -> Work:
    """The last requests of a session: each sends the whole history."""
    loop = Loop()

    async def begin() -> None:
        for _ in range(size - 8):
            await loop.ask()

    async def end() -> None:
        for _ in range(8):
            await loop.ask()

    asyncio.run(begin())
    return lambda: asyncio.run(end())


# A run's folder


def write_run(folder: Path, steps: int) -> Path:
    """A run of so many steps, with an evaluation after every tenth step."""
    run = folder / "run"
    for name in ("trajectories", "index", "checkpoints"):
        (run / name).mkdir(parents=True)
    (run / "config.yaml").write_text(TrainConfig(env="m:E", out=run, data=Path("t.jsonl"), steps=9).to_yaml())
    data = {**trajectory_of(2).to_json(), "reward": 0.5, "stop": "done"}
    about = Outline.of(Trajectory.from_json(data), {}).to_json()
    for step in range(1, steps + 1):
        _write_step(run, f"step_{step:06d}", f"train-{step:06d}", data, about)
        if step % 10 == 0:
            _write_step(run, f"eval_{step:06d}", f"eval-{step:06d}", data, about)
    lines = (
        json.dumps({"step": step, "reward_mean": 0.5, "turns_mean": 2.0, "seconds": 1.0})
        for step in range(1, steps + 1)
    )
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return run


def _write_step(run: Path, name: str, prefix: str, data: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    offset, lines, index = 0, list[str](), list[str]()
    for number in range(EPISODES):
        episode = f"{prefix}-{number // 4:04d}-{number % 4:03d}"
        lines.append(json.dumps({**data, "session_id": episode}) + "\n")
        place = {"name": episode, "step": int(prefix[-6:]), "offset": offset, "length": len(lines[-1]) - 1}
        index.append(json.dumps({**about, **place}) + "\n")
        offset += len(lines[-1])
    (run / "trajectories" / f"{name}.jsonl").write_text("".join(lines))
    (run / "index" / f"{name}.jsonl").write_text("".join(index))


def listing(steps: int, folder: Path, worst: int | None = None) -> Work:
    run = write_run(folder, steps)
    query = Query(sort="reward" if worst else "")
    return lambda: _print_list(run, query, worst=worst, as_json=False)


def audit(steps: int, folder: Path) -> Work:
    run = write_run(folder, steps)
    return lambda: _check_records([str(run)], {"model": None})


def compare(steps: int, folder: Path) -> Work:
    runs = [write_run(folder / name, steps) for name in ("a", "b")]
    return lambda: _compared([_open(run) for run in runs])


def view(steps: int, folder: Path) -> Work:
    """The page's first requests, a filtered list and a group."""
    run = write_run(folder, steps)

    def work() -> None:
        answers = PageAnswers([open_source(run)], None)
        for name, parameters in (
            ("state", {}),
            ("list", {"reward": "0.5"}),
            ("list", {"f": f"step_{steps:06d}"}),
            ("episode", {"f": f"step_{steps:06d}", "n": "0"}),
            ("group", {"f": f"step_{steps:06d}", "n": "0"}),
        ):
            json.dumps(answers.answer(name, parameters), default=str)

    return work


def resume(steps: int, folder: Path) -> Work:
    """Find the checkpoint, and remove the last step, in the files and in a journal of four groups a step."""
    run = write_run(folder, steps)
    for step in range(steps, 0, -max(1, steps // 4)):
        target = run / "checkpoints" / f"step_{step:06d}"
        target.mkdir()
        (target / "state.json").write_text("{}")
    journal = Journal(run / "journal.db")
    for number in range(4 * steps):
        journal.note((number, number, 0), "finished")
        journal.gone((number, number, 0), "trained", number // 4 + 1)
    journal.close()

    def work() -> None:
        files = RunFolder(run)
        files.latest_checkpoint(lambda line: None)
        files.rewind(steps - 1)
        RunRecords(run).rewind(steps - 1, 0)
        again = Journal(run / "journal.db")
        again.rewind(4 * steps, steps - 1, [])
        again.close()

    return work


# Data, tools and groups


def data(rows: int, folder: Path) -> Work:
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Question {row}?", "label": row}) + "\n" for row in range(rows)))
    return lambda: load_tasks(file, split="train")


def check_of_slime(rows: int, folder: Path) -> Work:
    """A launch with a data file of so many rows, of which the check reads the first."""
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps({"text": f"Question {row}?", "label": "x"}) + "\n" for row in range(rows)))
    (folder / "agentrl.yaml").write_text(yaml.safe_dump({"agentrl": {"env": f"{__name__}:Search"}}))
    words = (
        "python train.py --custom-generate-function-path agentrl.adapt --rollout-batch-size 8 --input-key text "
        f"--custom-config-path {folder}/agentrl.yaml --prompt-data {file}"
    )
    return lambda: slime_check(read_command(words.split()))


class Search(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return "The Seine flows through Paris."

    def score(self, trajectory: Trajectory) -> float:
        return float(len(trajectory.session_id) % 2)


def with_tools(count: int) -> type[Env]:
    """An Env with so many tools."""

    async def search(self: Any, query: str) -> str:
        """Search the encyclopedia."""
        return "The Seine flows through Paris."

    names = [f"search_{number}" for number in range(count)]
    return type("Tools", (Search,), {name: tool(_renamed(search, name)) for name in names})


def _renamed(function: Any, name: str) -> Any:
    async def renamed(self: Any, query: str) -> str:
        """Search the encyclopedia."""
        return str(await function(self, query))

    renamed.__name__ = renamed.__qualname__ = name
    return renamed


def tools(count: int, _: Path) -> Work:
    """An episode of two turns of an Env with so many tools."""
    env, renderer = with_tools(count), tiny_renderer()
    options = EpisodeOptions(limits=Limits(turns=2))

    def work() -> None:
        engine = ScriptedEngine([call("search_0", query="x"), "The Seine."], renderer)
        asyncio.run(run_episode(env(), Task(prompt="Which river?"), engine=engine, renderer=renderer, options=options))

    return work


def calls(count: int, _: Path) -> Work:
    """An episode whose first turn has so many calls."""
    renderer, options = tiny_renderer(), EpisodeOptions(limits=Limits(turns=2))
    made = [call("search", query=f"river {number}")["tool_calls"][0] for number in range(count)]
    turn: Message = {"role": "assistant", "content": "", "tool_calls": made}

    def work() -> None:
        engine = ScriptedEngine([turn, "The Seine."], renderer)
        played = asyncio.run(
            run_episode(Search(), Task(prompt="Which river?"), engine=engine, renderer=renderer, options=options)
        )
        assert len(played.actions[0].calls) == count, (played.stop, played.failure, played.actions[0])

    return work


def group(size: int, folder: Path) -> Work:
    """A group: its episodes, their metrics, advantages and rows."""
    config = TrainConfig(env="m:E", out=folder / "run", data=Path("t.jsonl"), steps=9)
    renderer = tiny_renderer()

    async def play() -> None:
        engine = ScriptedEngine(lambda ids: "The Seine." if len(ids) > 250 else call("search", query="x"), renderer)
        async with EnvFactory(Search) as envs:
            rollout = Rollout(envs=envs, engine=engine, renderer=renderer)
            groups = await run_groups(rollout, [Task(prompt="Which river?")], size)
        assert len(groups[0]) == size
        rows_to_learn(groups, config)
        RolloutMetrics.of_groups(groups).to_json()

    return lambda: asyncio.run(play())


STEPS = (40, 80, 160, 320)
PATHS: Mapping[str, Growth] = {
    **{name: reading(name) for name in ("actions", "to_json", "from_json", "mask(turn=) of each")},
    "a request of a gateway's session": Growth((64, 128, 256, 512), "requests before", requests),
    "show --list": Growth(STEPS, "steps", listing),
    "show --list --worst 5": Growth(STEPS, "steps", partial(listing, worst=5)),
    "check of records (audit)": Growth(STEPS, "steps", audit),
    "compare": Growth(STEPS, "steps", compare),
    "view": Growth(STEPS, "steps", view),
    "resume": Growth(STEPS, "steps", resume),
    "data": Growth((2000, 4000, 8000, 16000), "rows", data),
    "slime check": Growth((2000, 4000, 8000, 16000), "rows", check_of_slime),
    "tools": Growth((16, 32, 64, 128), "tools", tools),
    "calls of a turn": Growth((4, 8, 16, 32), "calls", calls),
    "group": Growth((16, 32, 64, 128), "episodes", group),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PATHS))
    parser.add_argument("--list", action="store_true", help="print the names of the paths")
    options = parser.parse_args()
    if options.list:
        print("\n".join(PATHS))
        return
    rows = list[dict[str, Any]]()
    for name in options.names:
        path = PATHS[name]
        seconds = [path.seconds(size) for size in path.sizes]
        slope = exponent(path.sizes, seconds)
        times = ", ".join(f"{1000 * each:.1f}" for each in seconds)
        late = f"   above {BOUND}" if slope > BOUND else ""
        print(
            f"{name:34} n^{slope:5.2f}   {times} ms at {path.sizes[0]} to {path.sizes[-1]} {path.unit}{late}",
            flush=True,
        )
        rows.append({"path": name, "exponent": round(slope, 2), "sizes": path.sizes, "ms": times})
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.names == list(PATHS):
        save("growth", rows)
    sys.exit(any(row["exponent"] > BOUND for row in rows))


if __name__ == "__main__":
    main()
