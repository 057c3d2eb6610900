"""OpenEnv's protocol: compare openenv's client with the adapter, on the same openenv server.

openenv has no environments, and those of its repository are on no package registry. So the server runs the
environment that `openenv init` writes, and an environment for each other kind of action: a text among fields, several
fields, MCP tools.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agentrl import EnvFactory, Limits, StopReason, Task
from agentrl.testing import call, rollout
from benchmarks.adapter_suites.both import SEEDS, Row, player, renderer, run

PYTHON = Path(os.environ["AGENTRL_ADAPTERS_CACHE"]) / "openenv" / "bin" / "python"
PARTS = Path(__file__).parent / "openenv_parts"
ENV = "agentrl_envs.adapters.openenv:OpenEnv"
TURNS = 6
KINDS = ("echo", "guess", "move", "shop")
SEEDS_31 = [seed % (1 << 31) for seed in SEEDS]


@contextmanager
def served() -> Iterator[dict[str, str]]:
    """Start the servers. Yields kind of environment -> URL."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in KINDS]
        for each in free:
            each.bind(("127.0.0.1", 0))
        ports = [str(each.getsockname()[1]) for each in free]
    urls = {kind: f"http://127.0.0.1:{port}" for kind, port in zip(KINDS, ports, strict=True)}
    server = subprocess.Popen([PYTHON, PARTS / "server.py", *ports], stderr=subprocess.DEVNULL)
    try:
        for url in urls.values():
            _wait(server, url)
        yield urls
    finally:
        server.terminate()
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health").close()
            return
        except OSError:
            assert server.poll() is None, "the server ended"
            time.sleep(0.2)


def actions(kind: str, seed: int) -> list[dict[str, Any]]:
    """The actions of a random player."""
    rng = player(seed)
    if kind == "echo":
        return [{"message": "x" * rng.randint(1, 9)} for _ in range(TURNS)]
    if kind == "guess":
        return [{"guess": rng.choice(["1", "2", "3", "4", "5", "6", "7", "8", "9", "hm"])} for _ in range(TURNS)]
    if kind == "move":
        return [{"direction": rng.choice(["up", "down"]), "steps": rng.randint(1, 2)} for _ in range(TURNS)]
    tools = [("price", {"item": "tea"}), ("price", {"item": "air"}), ("sell", {"item": "tea"})]
    return [{"type": "call_tool", "tool_name": name, "arguments": given} for name, given in rng.choices(tools, k=TURNS)]


def turn(kind: str, action: dict[str, Any]) -> Any:
    if kind == "shop":
        return call(action["tool_name"], **action["arguments"])
    return call("act", **action) if kind == "move" else next(iter(action.values()))


async def adapted(url: str, kind: str, plays: list[tuple[int, list[dict[str, Any]]]]) -> list[Any]:
    config: dict[str, Any] = {"url": url}
    async with EnvFactory(ENV, config) as envs:

        async def one(seed: int, given: list[dict[str, Any]]) -> Any:
            turns = [turn(kind, action) for action in given]
            limits, task = Limits(turns=len(turns)), Task(prompt=url, seed=seed)
            return await rollout(envs.make(), task, turns, renderer=renderer(), limits=limits)

        return await asyncio.gather(*(one(*play) for play in plays))  # four at once, where the server has two sessions


def reference(urls: dict[str, str]) -> dict[str, list[Any]]:
    """Kind of environment -> the results of openenv's client for each seed."""
    plays = [(url, seed, actions(kind, seed)) for kind, url in urls.items() for seed in SEEDS_31]
    command = [PYTHON, PARTS / "reference.py"]
    done = subprocess.run(command, input=json.dumps(plays), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    count = len(SEEDS_31)
    return {kind: told[i * count : (i + 1) * count] for i, kind in enumerate(urls)}


def play(kind: str, url: str, told: list[Any]) -> Row:
    ends = [next((i for i, one in enumerate(steps) if i and one[2]), len(steps) - 1) for steps in told]
    plays = [(seed, actions(kind, seed)[:end]) for seed, end in zip(SEEDS_31, ends, strict=True)]
    got = asyncio.run(adapted(url, kind, plays))
    for steps, end, t in zip(told, ends, got, strict=True):
        assert t.failure is None, t.failure and t.failure.error
        total = sum((float(one[1]) for one in steps[1 : end + 1] if one[1] is not None), 0.0)
        assert t.reward == total, f"reward {t.reward}, by its own client {total}"
        assert (t.stop is StopReason.DONE) == steps[end][2], f"stopped by {t.stop}"
    return {"result": "passed", "episodes": len(got), "nonzero": sum(t.reward != 0 for t in got)}


if __name__ == "__main__":
    with served() as urls:
        told = reference(urls)
        run(KINDS, lambda kind: play(kind, urls[kind], told[kind]))
