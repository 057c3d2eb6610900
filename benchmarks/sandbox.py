"""The cost of a sandbox compared with the raw engine: creation, commands, files, 16 at a time, and from a pool.

.ci/docker.sh -- .venv/bin/python -m benchmarks.sandbox     (starts an engine; with DOCKER_HOST set, run it without)

For the raw engine, the same client creates and starts containers with the same configuration, and an exec is created,
started, read to its end and inspected. Both are timed in turn, round by round. The results are medians. The exec of a
sandbox can kill the command with all its processes at the deadline; the raw exec cannot.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from statistics import median, quantiles
from typing import Any

from agentrl_sandbox.docker.backend import DockerBackend
from agentrl_sandbox.docker.container import configuration
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.images import Images
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec
from benchmarks.peers import save

ROUNDS = int(os.environ.get("ROUNDS", "15"))
WAVES = (ROUNDS + 4) // 5
AT_ONCE = 16
DRAIN_S = 20.0
SPEC = SandboxSpec(memory_mb=128, disk_mb=64, pids=64)
CONTENT = secrets.token_bytes(50_000)
Rows = list[dict[str, Any]]


class Raw:
    """Containers and execs of the engine's API, without a sandbox."""

    def __init__(self, engine: DockerClient, image: Any) -> None:
        self.engine, self.image = engine, image
        self.made: list[Any] = []

    async def create(self) -> Any:
        body = configuration(SPEC, "docker-raw", self.image, self.engine.host)
        container = await self.engine.docker.containers.create(body, name=f"docker-raw-{secrets.token_hex(6)}")
        self.made.append(container)
        await container.start()
        return container

    async def exec(self, container: Any, *argv: str, stdin: bytes | None = None) -> None:
        command = await container.exec(argv, user="1000:1000", stdin=stdin is not None, workdir="/work")
        async with command.start() as stream:
            if stdin is not None:
                await stream.write_in(stdin)
            while await stream.read_out() is not None:
                pass
        state = await command.inspect()
        assert state["ExitCode"] == 0, state

    async def close(self) -> None:
        for container in self.made:
            await container.delete(force=True, v=True)
        self.made.clear()


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """The milliseconds and the result of `work`."""
    begun = time.perf_counter()
    result = await work()
    return (time.perf_counter() - begun) * 1000, result


async def one_at_a_time(raw: Raw, backend: DockerBackend) -> Rows:
    times: dict[str, tuple[list[float], list[float]]] = {}

    def note(what: str, raw_ms: float, our_ms: float) -> None:
        for kept, ms in zip(times.setdefault(what, ([], [])), (raw_ms, our_ms), strict=True):
            kept.append(ms)

    for _ in range(ROUNDS):
        raw_ms, container = await timed(raw.create)
        our_ms, box = await timed(backend.sandbox(SPEC).__aenter__)
        note("create", raw_ms, our_ms)
        for what in ("first exec", "exec", "exec", "exec", "exec"):
            raw_ms, _ = await timed(lambda: raw.exec(container, "bash", "-c", "true"))  # noqa: B023 - run at once
            our_ms, _ = await timed(lambda: box.exec("true"))  # noqa: B023
            note(what, raw_ms, our_ms)
        size = str(len(CONTENT))
        write = ("sh", "-c", f"head -c {size} > file")
        raw_ms, _ = await timed(lambda: raw.exec(container, *write, stdin=CONTENT))  # noqa: B023
        our_ms, _ = await timed(lambda: box.write_file("file", CONTENT))  # noqa: B023
        note("write 50 kB", raw_ms, our_ms)
        raw_ms, _ = await timed(raw.close)
        our_ms, _ = await timed(lambda: box.__aexit__(None, None, None))  # noqa: B023
        note("remove", raw_ms, our_ms)
    return [row(what, *map(median, pair)) for what, pair in times.items()]


async def many_at_once(raw: Raw, backend: DockerBackend) -> Rows:
    times: dict[str, list[float]] = {}
    for _ in range(WAVES):
        ms, containers = await timed(lambda: asyncio.gather(*(raw.create() for _ in range(AT_ONCE))))
        times.setdefault("create raw", []).append(ms)
        work = [raw.exec(container, "bash", "-c", "true") for container in containers]
        times.setdefault("exec raw", []).append((await timed(lambda: asyncio.gather(*work)))[0])  # noqa: B023
        await raw.close()
        opening = [backend.sandbox(SPEC) for _ in range(AT_ONCE)]
        ms, boxes = await timed(lambda: asyncio.gather(*(box.__aenter__() for box in opening)))  # noqa: B023
        times.setdefault("create ours", []).append(ms)
        ours = [box.exec("true") for box in boxes]
        times.setdefault("exec ours", []).append((await timed(lambda: asyncio.gather(*ours)))[0])  # noqa: B023
        await asyncio.gather(*(box.close() for box in boxes))
    return [
        row(f"{what}, {AT_ONCE} at once", median(times[f"{what} raw"]), median(times[f"{what} ours"]))
        for what in ("create", "exec")
    ]


async def deadline(backend: DockerBackend) -> Rows:
    """The milliseconds from a command's deadline until the command is killed, together with its daemon."""
    late = []
    async with backend.sandbox(SPEC) as box:
        for _ in range(ROUNDS):
            ms, result = await timed(lambda: box.exec("setsid sleep 100 & sleep 100", timeout=0.2))
            assert result.timed_out
            late.append(ms - 200)
    return [row("killed after its deadline", None, median(late))]


async def pooled(backend: DockerBackend) -> Rows:
    """The time to get a ready sandbox from a pool, and the rate of a pool without ready sandboxes."""
    async with SandboxPool(backend, SPEC, size=AT_ONCE, warm=AT_ONCE // 2) as pool:

        async def take() -> float:
            begun = time.perf_counter()
            async with pool.acquire() as box:
                waited = (time.perf_counter() - begun) * 1000
                await box.exec("true")
            return waited

        await full(pool, AT_ONCE // 2)
        warm = []
        for _ in range(ROUNDS):
            warm.append(await take())
            await full(pool, AT_ONCE // 2)
        drained, begun = await drain(take)
        rate = len(drained) / (time.perf_counter() - begun)
    p99 = quantiles(drained, n=100)[98]
    return [
        row("ready from the pool", None, median(warm)),
        row("ready from the pool, slowest", None, max(warm)),
        {"what": f"episodes of one command each once drained, {AT_ONCE} at a time", "per second": round(rate, 2)},
        row("wait for a sandbox once drained, median", None, median(drained)),
        row("wait for a sandbox once drained, p99", None, p99),
    ]


async def full(pool: SandboxPool, ready: int) -> None:
    while pool.figures().lanes["episode"].ready < ready:  # noqa: ASYNC110 - it tells nobody when it is
        await asyncio.sleep(0.01)


async def drain(take: Callable[[], Awaitable[float]]) -> tuple[list[float], float]:
    """Take sandboxes for some time, with twice as many takers as sandboxes. The first sandbox of each taker does not
    count."""
    waits: list[float] = []
    begun = time.perf_counter()

    async def taker() -> None:
        await take()
        while time.perf_counter() - begun < DRAIN_S:
            waits.append(await take())

    await asyncio.gather(*(taker() for _ in range(2 * AT_ONCE)))
    return waits, begun


def row(what: str, raw: float | None, ours: float) -> dict[str, Any]:
    found = {"what": what, "ours (ms)": round(ours, 1)}
    return found if raw is None else {**found, "raw (ms)": round(raw, 1), "ours / raw": round(ours / raw, 3)}


async def main() -> None:
    rows: Rows = [{"what": "load of the machine at the start (processes that want a core)", "load": os.getloadavg()[0]}]
    async with DockerBackend() as backend:
        engine = DockerClient()
        raw = Raw(engine, await Images(engine).owned(SPEC))
        try:
            for part in (one_at_a_time(raw, backend), many_at_once(raw, backend), deadline(backend), pooled(backend)):
                for found in await part:
                    print("  ".join(f"{name}: {value}" for name, value in found.items()), flush=True)
                    rows.append(found)
        finally:
            await raw.close()
            await engine.close()
    save("sandbox", rows)


if __name__ == "__main__":
    asyncio.run(main())
