"""Which host gets the next sandbox, and what a lost one does to the others: without engines."""

import asyncio

import pytest

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl.errors import SandboxError
from agentrl_sandbox import SandboxPool
from agentrl_sandbox.docker import hosts
from agentrl_sandbox.docker.hosts import DockerHosts, EngineHost
from agentrl_sandbox.docker.sandbox import DockerSandbox
from agentrl_sandbox.machine import Machine
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.yard import Yard

SPEC = SandboxSpec(memory_mb=512, cpus=1)


class Engine:
    """As much of a DockerClient as an opening needs that never reaches the engine."""

    gone = ""
    is_local = False

    def __init__(self):
        self.docker = self
        self.containers = self

    def container(self, name):
        return None

    async def ping(self, within_s):
        if self.gone:
            raise SandboxError("it does not answer")


class Watch:
    def drop(self, sandbox_id): ...


class Back:
    """As much of a DockerBackend."""

    def __init__(self, cores):
        self.machine, self.engine = Machine(cores, 1 << 20), Engine()
        self.removed = []

    @property
    def parts(self):
        return self.engine, None, Watch()

    def check(self, spec): ...

    async def remove(self, ids):
        self.removed += ids


@pytest.fixture
def made(monkeypatch):
    """Makes back ends over hosts with so many cores. `broken` hosts fail to make a sandbox."""
    broken = set()

    async def opens(box):
        await asyncio.sleep(0)
        if box.engine_host.name in broken:
            raise SandboxError(f"{box.engine_host.name} is full")

    monkeypatch.setattr(DockerSandbox, "_open", opens)

    def make(**cores):
        backend = DockerHosts(",".join(cores))
        backend.engine_hosts = [EngineHost(name) for name in cores]
        for host in backend.engine_hosts:
            host.backend, host.lost = Back(cores[host.name]), ""
        backend.broken = broken
        return backend

    return make


async def opened(backend, count):
    boxes = [backend.sandbox(SPEC) for _ in range(count)]
    for box in boxes:
        await box.__aenter__()
    return boxes


def loads(backend):
    return {host.name: len(host.boxes) for host in backend.engine_hosts}


async def test_sandboxes_are_spread_by_the_hosts_room(made):
    backend = made(small=2, large=6)
    boxes = await opened(backend, 16)
    assert loads(backend) == {"small": 4, "large": 12}
    for box in boxes[:8]:
        await box.close()
    assert sum(loads(backend).values()) == 8


async def test_a_host_that_cannot_make_one_comes_after_the_others_for_a_while(made, monkeypatch):
    backend = made(one=2, two=2)
    backend.broken.add("one")
    await opened(backend, 6)
    assert loads(backend) == {"one": 0, "two": 6}
    backend.broken.clear()
    for host in backend.engine_hosts:
        host.doubted.clear()
    monkeypatch.setattr(hosts.time, "monotonic", lambda: 1e12)
    await opened(backend, 4)
    assert loads(backend) == {"one": 4, "two": 6}
    backend.broken |= {"one", "two"}
    with pytest.raises(SandboxError, match="is full"):
        await opened(backend, 1)
    assert loads(backend) == {"one": 4, "two": 6}


async def test_a_lost_host_takes_only_its_own_along(made, monkeypatch):
    monkeypatch.setattr(hosts, "_SURE_S", 0.0)
    backend = made(one=2, two=2)
    boxes = await opened(backend, 4)
    one, two = backend.engine_hosts
    one.backend.engine.gone = "dead"
    assert await two.check() == ""
    await one.lose(await one.check())
    on_one = [box for box in boxes if box.engine_host is one]
    assert len(on_one) == 2
    for box in boxes:
        assert box.doubtful == (box in on_one)
        if box in on_one:
            with pytest.raises(SandboxError, match="host one was lost: it does not answer"):
                await box.exec("true")
    assert backend.machine.cores == 2
    assert all(box.engine_host is two for box in await opened(backend, 3))
    for box in on_one:  # as if a container had been made
        box._requests.add(asyncio.create_task(asyncio.sleep(0)))
        await box.close()
    assert one.abandoned == {box.sandbox_id for box in on_one}
    await one.clear_abandoned()
    assert (sorted(one.backend.removed), one.abandoned) == (sorted(box.sandbox_id for box in on_one), set())
    await two.lose("dead, too")
    with pytest.raises(SandboxError, match=r"host one was lost.*; host two was lost"):
        backend.sandbox(SPEC)


class Growing(Yard):
    machine = Machine(4, 64 << 10)


@pytest.mark.parametrize(("size", "all_of_it", "half"), [(None, 15, 7), (12, 12, 6)])
async def test_a_pool_shrinks_while_hosts_are_lost(size, all_of_it, half):
    yard = Growing()
    async with SandboxPool(yard, SPEC.model_copy(update={"cpus": 0.8}), size=size, warm=0) as pool:

        async def capacity():
            async with pool.acquire():  # each removal has the pool look
                pass
            await asyncio.sleep(0.05)
            return pool.figures().lanes["episode"].capacity

        assert await capacity() == all_of_it
        yard.machine = Machine(2, 32 << 10)
        assert await capacity() == half + (size is None)
        yard.machine = Machine(4, 64 << 10)
        assert await capacity() == all_of_it


async def test_a_ready_sandbox_of_a_doubted_host_is_checked_first():
    yard = Yard()
    async with SandboxPool(yard, SPEC, size=2, grade=1, warm=2) as pool:
        while len(yard.open) < 3:  # noqa: ASYNC110 - the pool has no event for it
            await asyncio.sleep(0.01)
        dying = [box.sandbox for box in pool.lanes["episode"].ready]
        for box in dying:
            box.doubtful, box.dead = True, "its host is gone"
        async with pool.acquire() as box:
            assert box not in dying
    assert pool.figures().died == 2
