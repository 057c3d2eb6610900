"""The viewer with large inputs: times, memory and CPU time of the page, each with its limit.

    python -m benchmarks.view [--folder FOLDER]     five minutes; 2.3 GB in FOLDER (default: temporary)

CPU time is of a single thread, and depends little on other programs. Other times are wall-clock times, the
least of three. The page is measured in the distribution's Chromium (.ci/browser.sh).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from agentrl import Generation, StopReason, Task, Trajectory
from agentrl.models import load_tokenizer
from agentrl.trajectory.outline import Outline
from agentrl.types import Action, Rendered, RenderedSpan
from agentrl.view.answers import PageAnswers
from agentrl.view.server import COOKIE, ViewServer
from agentrl.view.sources import open_source
from tests.view.browser import Browser, chromium

STEPS, EPISODES, FOLDER_BYTES = 95, 32, 1 << 30
FILE_EPISODES, FILE_BYTES = 172_800, 1 << 30
OUTLINES = 100_000
FRAMES = 120
TEXT = (
    "The tower of Lima. \u6771\u4eac\u306e\u5854\u306f\u3069\u3053? \u0413\u0434\u0435 \u0431\u0430\u0448\u043d\u044f? "
    "\U0001f5fc\U0001f30d yes\nno, 12.5 metres; look: "
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value and its limit."""

    name: str
    value: float
    bound: float | None
    unit: str

    def __str__(self) -> str:
        verdict = "" if self.bound is None else f"   bound {self.bound:g} {self.unit}"
        late = self.bound is not None and self.value > self.bound
        return f"{self.name:<62} {self.value:>9.3f} {self.unit:<3}{verdict}{'   MISSED' if late else ''}"


def long_episode(tokens: int, name: str, seed: int = 0) -> Trajectory:
    """An episode of `tokens` tokens, with turns of 200 and observations of 100 tokens, in several alphabets."""
    ids = load_tokenizer("tiny").encode(TEXT)
    chooser, written = random.Random(seed), ids * (tokens // len(ids) + 9)
    trajectory, at = Trajectory(Task(id=f"long-{tokens}"), session_id=name), 300
    trajectory.append_prompt(Rendered(written[: min(at, tokens - 1)], ()), [{"role": "user", "content": "Where?"}])
    while (at := trajectory.segment.length) < tokens:
        said = written[at : min(at + 200, tokens)]
        trajectory.append_model(Generation(said, [-chooser.random() for _ in said], "stop"), seconds=0.5)
        trajectory.append_action(Action(text="", content=""))
        spans = (RenderedSpan("observation", 0, 90), RenderedSpan("prompt", 90, 100))
        trajectory.append_observation(Rendered(written[at + 200 : at + 300], spans))
    trajectory.reward, trajectory.stop = 0.5, StopReason.DONE
    return trajectory


def compact(data: dict[str, Any]) -> str:
    data["log_probs"] = [float(f"{x:.9g}") for x in data["log_probs"]]
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def with_trainer(data: dict[str, Any]) -> dict[str, Any]:
    sampled = array("f", [x for x in data["log_probs"] if x])
    data["training"] = {
        "step": 1,
        "group": 0,
        "member": 0,
        "advantages": [[0.5]],
        "log_probs": [[x - 0.01 for x in sampled]],
    }
    return data


def write_folder(folder: Path, *, index: bool) -> None:
    """Write a run of 1 GB: 3,040 episodes in 95 files."""
    (folder / "trajectories").mkdir(parents=True)
    (folder / "index").mkdir()
    (folder / "config.yaml").write_text("model: tiny\n")
    size = FOLDER_BYTES // (STEPS * EPISODES)
    data = long_episode(size // 28, "NAME").to_json()
    line, about = compact(data), Outline.of(data).to_json()
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in range(1, STEPS + 1):
            names = [f"train-{step:06d}-{number // 8:04d}-{number % 8:03d}" for number in range(EPISODES)]
            lines = [line.replace("NAME", name) + "\n" for name in names]
            (folder / "trajectories" / f"step_{step:06d}.jsonl").write_text("".join(lines))
            if index:
                write_index(folder / "index" / f"step_{step:06d}.jsonl", names, lines, about)
            metrics.write(
                json.dumps({"step": step, "reward_mean": step / STEPS, "groups": 4, "sampled_tokens": 9}) + "\n"
            )


def write_index(file: Path, names: list[str], lines: list[str], about: dict[str, Any]) -> None:
    offset, found = 0, list[str]()
    for name, line in zip(names, lines, strict=True):
        length = len(line.encode()) - 1
        found.append(json.dumps({**about, "name": name, "offset": offset, "length": length}) + "\n")
        offset += length + 1
    file.write_text("".join(found))


def write_file(file: Path) -> None:
    """Write a file of 1 GB with short episodes."""
    size = FILE_BYTES // FILE_EPISODES
    line = compact(long_episode(size // 40, "NAME").to_json())
    with file.open("w") as opened:
        for number in range(FILE_EPISODES):
            opened.write(line.replace("NAME", f"train-000001-{number // 8:04d}-{number % 8:03d}") + "\n")


def write_outlines(folder: Path) -> None:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "index").mkdir()
    (folder / "trajectories" / "step_000001.jsonl").touch()
    about = Outline.of(long_episode(300, "NAME").to_json()).to_json()
    line = json.dumps({**about, "step": 1, "offset": 0, "length": 1})
    (folder / "index" / "step_000001.jsonl").write_text(
        "".join(f"{line.replace('NAME', str(number))}\n" for number in range(OUTLINES))
    )


# The server, as a process


@dataclass(frozen=True, slots=True)
class Served:
    """A server that the command `agentrl view` has started."""

    process: asyncio.subprocess.Process
    address: str
    token: str
    http: aiohttp.ClientSession
    seconds: float
    """Seconds from the start of the server until it listened."""

    async def ask(self, path: str) -> tuple[float, Any]:
        began = time.monotonic()
        async with self.http.get(f"{self.address}{path}") as answer:
            found = await answer.json()
        assert answer.status == 200, found
        return time.monotonic() - began, found

    def cpu(self) -> float:
        """CPU seconds of the server since its start, which do not depend on the load of the machine."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Served]:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentrl", "view", str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    link = (await process.stdout.readline()).decode().strip()
    seconds = time.monotonic() - began
    address, token = link.split("/?token=")
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(cookies={COOKIE: token}, cookie_jar=jar) as http:
            yield Served(process, address, token, http, seconds)
    finally:
        process.terminate()
        await process.wait()


async def large_folder(folder: Path) -> list[Figure]:
    found = list[Figure]()
    for indexed in (True, False):
        run = folder / f"run-{indexed}"
        write_folder(run, index=indexed)
        starts = [await first_page(run) for _ in range(2)]
        async with served(run) as server:
            page, _ = await server.ask("/api/state")
            cpu = server.cpu()
            start, listening = min([*starts, (server.seconds + page, server.seconds)])
            step, _ = await server.ask("/api/list?f=step_000050&limit=5000")
            await server.ask("/api/episode?f=step_000050&n=3")  # the tokenizer may still be loading
            episode, _ = await server.ask("/api/episode?f=step_000050&n=7")
            how = "with its index" if indexed else "without an index"
            found += [
                Figure(f"1 GB folder {how}: start to the first page", start, 2.0, "s"),
                Figure("  of it, start to listening", listening, None, "s"),
                Figure("  CPU until then", cpu, None, "s"),
                Figure("  a step", step, None, "s"),
                Figure("  an episode of it", episode, 0.5, "s"),
                Figure("  memory", server.memory(), 150, "MB"),
            ]
        for file in (run / "trajectories").iterdir():
            file.unlink()
    return found


async def first_page(path: Path) -> tuple[float, float]:
    """Seconds from the start of the command until the first page is shown, and until the server listens."""
    async with served(path) as server:
        page, _ = await server.ask("/api/state")
        return server.seconds + page, server.seconds


async def large_file(folder: Path) -> list[Figure]:
    file = folder / "large.jsonl"
    write_file(file)
    async with served(file) as server:
        before = server.cpu()
        first, found = await server.ask("/api/list?f=large.jsonl&limit=400")
        cpu = server.cpu() - before
        assert found["total"] == FILE_EPISODES
        await server.ask(f"/api/episode?f=large.jsonl&n={FILE_EPISODES // 3}")  # the tokenizer may still be loading
        episode, _ = await server.ask(f"/api/episode?f=large.jsonl&n={FILE_EPISODES // 2}")
        memory = server.memory()
    file.unlink()
    return [
        Figure(f"1 GB file, {FILE_EPISODES:,} episodes: the first 400 rows", first, 2.0, "s"),
        Figure("  CPU of it", cpu, None, "s"),
        Figure("  then any episode", episode, 0.5, "s"),
        Figure("  memory", memory, None, "MB"),
    ]


async def many_outlines(folder: Path) -> list[Figure]:
    run = folder / "outlines"
    write_outlines(run)
    async with served(run) as server:
        before = server.cpu()
        asked = [await server.ask("/api/list?f=step_000001&reward=0.5&limit=400") for _ in range(3)]
        cpu = (server.cpu() - before) / len(asked)
    seconds, found = min(asked, key=lambda each: each[0])
    assert found["found"] == OUTLINES
    return [
        Figure(f"{OUTLINES:,} outlines through the index", seconds, 1.0, "s"),
        Figure("  CPU of it, with the tokenizer's", cpu, None, "s"),
    ]


def server_cpu(run: Path, name: str) -> Iterator[tuple[float, int]]:
    """CPU seconds and bytes of the server's response with an episode that is not in its cache."""
    for _ in range(3):
        answers = PageAnswers([open_source(run)], "tiny")
        answers.warm()
        answers.answer("state", {})
        began = time.thread_time()
        body = json.dumps(answers.answer("episode", {"f": name, "n": "0"}), ensure_ascii=False, separators=(",", ":"))
        yield time.thread_time() - began, len(body.encode())


async def page_cpu(browser: Browser, act: Callable[[], Any]) -> float:
    """CPU seconds of the page's main thread during `act`."""
    before = await _task_seconds(browser)
    await act()
    return await _task_seconds(browser) - before


async def _task_seconds(browser: Browser) -> float:
    found = await browser.send("Performance.getMetrics")
    return float(next(metric["value"] for metric in found["metrics"] if metric["name"] == "TaskDuration"))


async def long_episodes(folder: Path) -> list[Figure]:
    found = list[Figure]()
    for tokens, bound in ((100_000, True), (1_000_000, False)):
        name = f"long_{tokens}.jsonl"
        data = with_trainer(long_episode(tokens, "train-000001-0000-000").to_json())
        (folder / name).write_text(compact(data) + "\n")
        cpu, size = min(server_cpu(folder / name, name))
        found += [
            Figure(f"an episode of {tokens:,} tokens: server CPU", cpu, 0.5 if bound else None, "s"),
            Figure("  sent", size / 1e6, None, "MB"),
            *await in_browser(folder / name, name, bound=bound),
        ]
    return found


async def in_browser(file: Path, name: str, *, bound: bool) -> list[Figure]:
    server = ViewServer([open_source(file)], model="tiny")
    await server.start()
    try:
        async with chromium() as browser:
            await browser.send("Performance.enable", timeDomain="threadTicks")
            await browser.goto(server.link)
            built, scrolled = list[float](), list[float]()
            for _ in range(3):
                await browser.visit("#/0/run", "run")
                built.append(await page_cpu(browser, lambda: browser.visit(f"#/0/episode/{name}/0", "episode")))
                scroll = (
                    f"(async () => {{ const r = document.querySelector('.rows'); for (let i = 0; i < {FRAMES}; i++)"
                    " { r.scrollTop += 400; await new Promise(requestAnimationFrame); } return 1; })()"
                )
                scrolled.append(await page_cpu(browser, lambda scroll=scroll: browser.js(scroll)) / FRAMES)
            last = await browser.js(
                "(async () => { const r = document.querySelector('.rows'); r.scrollTop = r.scrollHeight;"
                " await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);"
                " return r.innerText.length; })()"
            )
            assert last > 100, "the end is shown"
            heap = await browser.js("performance.memory.usedJSHeapSize / 1e6")
    finally:
        await server.close()
    return [
        Figure("  page CPU to show it", min(built), 0.1 if bound else None, "s"),
        Figure("  page CPU a scrolled frame", 1000 * min(scrolled), 16 if bound else None, "ms"),
        Figure("  heap", heap, None, "MB"),
    ]


async def live(folder: Path) -> list[Figure]:
    """Seconds from writing a step's line in metrics.jsonl until the page shows the step."""
    run = folder / "live"
    (run / "trajectories").mkdir(parents=True)
    (run / "config.yaml").write_text("model: tiny\n")
    line = {"reward_mean": 0.5, "sampled_tokens": 10, "groups": 1}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, **line}) + "\n")
    server, delays = ViewServer([open_source(run)]), list[float]()
    await server.start()
    try:
        async with chromium() as browser:
            await browser.goto(server.link)
            for step in range(2, 7):
                began = time.monotonic()
                with (run / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({"step": step, **line}) + "\n")
                await browser.until(
                    f"document.querySelector('.verdict div:nth-child(3) strong')?.textContent === '{step}'"
                )
                delays.append(time.monotonic() - began)
    finally:
        await server.close()
    return [Figure("a new step is shown, slowest of five", max(delays), 3.0, "s")]


async def measure(folder: Path) -> list[Figure]:
    found = list[Figure]()
    for part in (live, long_episodes, many_outlines, large_file, large_folder):
        figures = await part(folder)
        print(f"(load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)")
        for figure in figures:
            print(figure, flush=True)
        found += figures
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where 2.3 GB are written; removed afterwards")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-view-", dir=args.folder) as folder:
        found = asyncio.run(measure(Path(folder)))
    sys.exit(any(figure.bound is not None and figure.value > figure.bound for figure in found))


if __name__ == "__main__":
    main()
