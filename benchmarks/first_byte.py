"""The time to the first byte for a thousand coding agents that start together: `make bench-first-byte`.

python -m benchmarks.first_byte [--agents 1000] [--workers 0,2] [--faults] [--before FOLDER]

The agents and the engine run in this process. The gateway runs in a second process, which plays the episodes of an
AgentEnv as a rollout does, or starts `workers`, each with its own gateway. An agent sends a request like the first
request of Claude Code: 24 tools, a system prompt and reminders of 80 kB, about 18,000 tokens of Qwen 3. All agents have
the same system prompt and tools; the eight agents of a group have the same task. No agent sends before all episodes
have begun. The engine responds at once with the same few tokens.

With --before, a checkout of an earlier agentrl is measured in turn with this agentrl. With --faults, half of the agents
disconnect, in four ways, and others send garbage: the rest must get their replies, and no resource may remain open.

Seconds count from the moment at which all agents connect. The lag of the gateway's event loop is measured every 10 ms.
The memory is the growth of the gateway's processes up to their peak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from pydantic import BaseModel

from agentrl import AgentEnv, Endpoint, EnvFactory, EpisodeOptions, Limits, Task, Trajectory
from agentrl.engine.sglang import SGLangEngine
from agentrl.episode.shared import loop_resources
from agentrl.gateway.serving.server import loop_gateway
from agentrl.render import load_renderer
from agentrl.rollout import Rollout
from agentrl.rollout.play.episodes import play_episode
from agentrl.rollout.play.remote import EpisodeOrder, with_workers
from benchmarks.peers import engine_body, load_tokenizer, save, which_tokenizer

HERE = Path(__file__).resolve()
GROUP = 8
CLIENTS_WAIT_S = 60.0
"""Seconds that coding agents wait for a first byte."""
GIVE_UP_S = 1500.0
TOOLS, TOOL_LETTERS, SYSTEM_LETTERS, REMINDER_LETTERS = 24, 2700, 6400, 9400
FAULTS = ("leaves at once", "leaves in the middle", "is cancelled", "sends half a request")


# The gateway's process


class CallerConfig(BaseModel):
    fleet: str


@asynccontextmanager
async def watched(config: CallerConfig) -> AsyncIterator[ClientSession]:
    """A client of the fleet. At the end, the fleet gets the measurements of this process."""
    lags, clock = list[float](), asyncio.get_running_loop().time

    async def tick() -> None:
        while True:
            before = clock()
            await asyncio.sleep(0.01)
            lags.append(clock() - before - 0.01)

    ticking, began = asyncio.create_task(tick()), memory()["VmRSS"]
    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=GIVE_UP_S)) as client:
        try:
            yield client
        finally:
            ticking.cancel()
            await asyncio.sleep(1.0)
            found = {
                "lag": ranks(lags),
                "mb": (memory()["VmHWM"] - began) / 1024,
                "sessions": len((await loop_gateway())._sessions),
                "tasks": sum(" _answer" in str(task) or "agent " in task.get_name() for task in asyncio.all_tasks()),
                "cpu": time.process_time(),
            }
            async with client.post(f"{config.fleet}/fared", json=found):
                pass


class Caller(AgentEnv):
    """An agent that runs in the process of the fleet."""

    config: CallerConfig
    shared: ClientSession

    @classmethod
    def share(cls, config: CallerConfig) -> Any:
        return watched(config)

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        told = {"url": endpoint.url, "key": endpoint.key, "number": task.metadata["number"]}
        async with self.shared.post(f"{self.config.fleet}/run", json=told) as ended:
            return await ended.json()

    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.ledger.trained == trajectory.ledger.sampled > 0)


async def gateway(fleet: str, agents: int, workers: int) -> None:
    """Play the episodes, and print their results."""
    tokenizer, files = load_tokenizer(), open_files()
    path, config = f"{HERE}:Caller", {"fleet": fleet}
    options = EpisodeOptions(limits=Limits(turns=4, context=1_000_000))
    engine = SGLangEngine(fleet)
    rollout = Rollout(envs=EnvFactory(path, config), engine=engine, renderer=load_renderer(tokenizer), options=options)
    order = EpisodeOrder(
        env=path, env_config=config, options=options, tokenizer=tokenizer, engine="sglang", engine_config={"url": fleet}
    )
    tasks = [Task(prompt="", id=str(number // GROUP), metadata={"number": number}) for number in range(agents)]
    async with with_workers(workers, rollout, order) as playing, ClientSession() as client:
        episodes = [
            asyncio.create_task(play_episode(playing, task, {}, f"s{number}")) for number, task in enumerate(tasks)
        ]

        async def cancel() -> None:
            async with client.get(f"{fleet}/cancelled", timeout=ClientTimeout(total=None)) as told:
                for number in await told.json():
                    episodes[number].cancel()

        cancelling = asyncio.create_task(cancel())
        ended = await asyncio.gather(*episodes, return_exceptions=True)
        cancelling.cancel()
    await engine.close()
    await loop_resources().close()
    await asyncio.sleep(1.0)
    left = open_files() - files - 1  # that of the thread pool, for example
    print(json.dumps({"episodes": Counter(map(outcome, ended)), "files": max(0, left)}))


def outcome(ended: Trajectory | BaseException) -> str:
    if isinstance(ended, BaseException):
        return type(ended).__name__
    return f"reward {ended.reward:g}" if ended.failure is None else f"failed: {ended.failure.boundary}"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory() -> dict[str, int]:
    """The memory of this process, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest}


# The fleet's process: the agents, and the engine


def words(chance: random.Random, letters: int) -> str:
    """A text from this project's documentation, from a random place."""
    at = chance.randrange(len(PAGES) - letters)
    return PAGES[at : at + letters]


PAGES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((HERE.parents[1] / "docs").glob("*.md")))


def first_request(number: int, *, stream: bool) -> bytes:
    """The body of an agent's first request, like that of Claude Code."""
    chance = random.Random(7)
    tools = [
        {
            "name": f"Tool{index}",
            "description": words(chance, TOOL_LETTERS - 700),
            "input_schema": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": words(chance, 120)} for name in ("path", "text", "mode")
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        }
        for index in range(TOOLS)
    ]
    system = words(chance, SYSTEM_LETTERS)
    reminder = f"<system-reminder>\n{words(chance, REMINDER_LETTERS)}\n</system-reminder>"
    task = words(random.Random(f"task {number // GROUP}"), 600)
    body = {
        "model": "agentrl",
        "max_tokens": 32000,
        "stream": stream,
        "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
        "tools": tools,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in (reminder, task)]}],
        "metadata": {"user_id": f"user_1_account__session_{number:08}"},
    }
    return json.dumps(body).encode()


class Agent(asyncio.Protocol):
    """A client that sends a request and reads the reply."""

    def __init__(self, sent: bytes) -> None:
        self.sent, self.got, self.first = sent, bytearray(), 0.0
        self.came = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.sent)

    def data_received(self, data: bytes) -> None:
        if not self.first:
            self.first = time.monotonic()
            self.came.set_result(None)
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def answered(self) -> bool:
        """Whether the agent got a complete reply."""
        return self.got.startswith(b"HTTP/1.1 200") and b"All done." in self.got


@dataclass
class Fleet:
    """The agents of a round, and their engine."""

    agents: int
    stream: bool
    faults: bool
    answer: bytes
    began: float = 0.0
    waiting: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    fared: list[Mapping[str, Any]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def fault(self, number: int) -> str:
        """The fault of an agent; empty for an agent without a fault, which is every second agent of a group."""
        return FAULTS[number // 2 % len(FAULTS)] if self.faults and number % 2 else ""

    async def run(self, request: web.Request) -> web.Response:
        """Run one agent, together with all others."""
        told = await request.json()
        number, url = told["number"], urlsplit(told["url"])
        body = await asyncio.to_thread(first_request, number, stream=self.stream)
        head = f"POST /v1/messages HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {told['key']}\r\n"
        sent = f"{head}Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        fault = self.fault(number)
        whole = sent.encode() + (body[: len(body) // 2] if fault == "sends half a request" else body)
        self.waiting += 1
        if self.waiting == self.agents:
            self.began = time.monotonic()
            self.ready.set()
        await self.ready.wait()
        loop = asyncio.get_running_loop()
        transport, agent = await loop.create_connection(lambda: Agent(whole), url.hostname, url.port)
        if fault:
            await self.go_wrong(fault, agent, url.hostname or "", url.port or 0)
            transport.abort()
            return web.json_response(None)
        await agent.ended
        if not agent.answered:
            self.lost.append(bytes(agent.got[:300]).decode(errors="replace"))
        else:
            self.first.append(agent.first - self.began)
            self.whole.append(time.monotonic() - self.began)
        return web.json_response(None)

    async def go_wrong(self, fault: str, agent: Agent, host: str, port: int) -> None:
        if fault == "leaves in the middle":
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(agent.came), 5)
        elif fault == "is cancelled":
            self.cancelled.set()
            await asyncio.sleep(5)
        else:
            rubbish = random.Random(port).randbytes(3000)
            _, other = await asyncio.open_connection(host, port)
            with suppress(ConnectionError):
                other.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{" + rubbish)
                await other.drain()
            await asyncio.sleep(0.5)
            other.transport.abort()

    async def cancels(self, _: web.Request) -> web.Response:
        """Respond with the episodes to cancel, as soon as their agents have sent their requests."""
        await self.cancelled.wait()
        await asyncio.sleep(1.0 if self.faults else 0.0)
        return web.json_response([number for number in range(self.agents) if self.fault(number) == "is cancelled"])

    async def generate(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=self.answer, content_type="application/json")

    async def hear(self, request: web.Request) -> web.Response:
        self.fared.append(await request.json())
        return web.Response()


async def measured(tree: Path, agents: int, workers: int, *, stream: bool, faults: bool) -> dict[str, Any]:
    """Play a round with the agentrl in the folder `tree`, and return the results."""
    fleet = Fleet(agents, stream, faults, engine_body(load_tokenizer(), "I have looked at it. All done.<|im_end|>"))
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/run", fleet.run)
    app.router.add_post("/generate", fleet.generate)
    app.router.add_post("/fared", fleet.hear)
    app.router.add_get("/cancelled", fleet.cancels)
    app.router.add_route("*", "/{rest:.*}", lambda _: asyncio.sleep(0, web.json_response({})))
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    own = [str(tree), str(tree / "envs"), str(tree / "sandbox")]
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE), "--gateway", f"http://127.0.0.1:{runner.addresses[0][1]}"),
        *("--agents", str(agents), "--workers", str(workers)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(GIVE_UP_S):
            output, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        fleet.cancelled.set()
        await runner.cleanup()
    if program.returncode:
        raise SystemExit(f"the gateway's process ended with status {program.returncode}")
    row, ended = summary(fleet), json.loads(output.splitlines()[-1])
    row["left"]["files"] = ended["files"]
    return {**row, "episodes": ended["episodes"], "lost": fleet.lost[:3]}


def summary(fleet: Fleet) -> dict[str, Any]:
    late = sum(seconds > CLIENTS_WAIT_S for seconds in fleet.first)
    with_loops = [one for one in fleet.fared if one["lag"]]
    return {
        "first": ranks(fleet.first),
        "whole": ranks(fleet.whole),
        "late": late,
        "answered": len(fleet.first),
        "unanswered": len(fleet.lost),
        "lag": {name: max(one["lag"][name] for one in with_loops) for name in ("p50", "p99", "max")},
        "mb": round(sum(one["mb"] for one in fleet.fared)),
        "cpu": round(sum(one["cpu"] for one in fleet.fared), 1),
        "left": {name: sum(one[name] for one in fleet.fared) for name in ("sessions", "tasks")},
    }


def ranks(values: Sequence[float]) -> dict[str, float]:
    """The median, the 99th percentile and the longest, in seconds."""
    if not values:
        return {}
    ordered = sorted(values)
    found = {"p50": median(ordered), "p99": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}
    return {name: round(value, 3) for name, value in found.items()}


def show(name: str, row: Mapping[str, Any]) -> None:
    def told(of: str) -> str:
        return " ".join(f"{row[of].get(rank, 0):>7.2f}" for rank in ("p50", "p99", "max"))

    print(f"{name:<32}{told('first')} {row['late']:>6} {told('whole')} {told('lag')} {row['mb']:>6} {row['cpu']:>6}")
    if row["unanswered"] or row["episodes"] != {"reward 1": row["answered"]} or any(row["left"].values()):
        print(f"  unanswered {row['unanswered']}, episodes {row['episodes']}, left {row['left']} {row['lost']}")
    sys.stdout.flush()


async def compare(given: argparse.Namespace) -> list[dict[str, Any]]:
    trees = {"before": Path(given.before)} if given.before else {}
    trees["now"] = HERE.parents[1]
    print(f"{given.agents} agents; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; seconds")
    print(f"{'':<32}{'first byte p50 p99 max':>23} {'> 60 s':>6} {'reply':>23} {'lag':>23} {'MB':>6} {'CPU s':>6}")
    rows = list[dict[str, Any]]()
    for workers in map(int, given.workers.split(",")):
        for stream in (True, False):
            for name, tree in trees.items():
                row = await measured(tree, given.agents, workers, stream=stream, faults=given.faults)
                about = {"agentrl": name, "workers": workers, "streamed": stream, "faults": given.faults}
                rows.append({**about, "agents": given.agents, "load": round(os.getloadavg()[0], 1), **row})
                where = f"{workers} workers" if workers else "one process"
                show(f"{name}, {where}, {'streamed' if stream else 'whole'}", row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_byte")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--workers", default="0", help="numbers of workers, with commas between; 0: one process")
    parser.add_argument("--before", default="", help="a checkout of an earlier agentrl, to measure beside this one")
    parser.add_argument("--faults", action="store_true", help="half of the agents go wrong")
    parser.add_argument("--gateway", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.gateway:
        asyncio.run(gateway(given.gateway, given.agents, int(given.workers)))
        return
    which_tokenizer()
    save("first_byte", asyncio.run(compare(given)))


if __name__ == "__main__":
    main()
