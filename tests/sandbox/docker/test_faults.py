"""Who is to blame: an engine's faults are not the agent's."""

import asyncio
import contextlib
import time

import pytest
from aiodocker import DockerError

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox import SandboxPool
from agentrl_sandbox.docker import state
from agentrl_sandbox.docker.engine import Host
from agentrl_sandbox.docker.process import DockerProcess
from tests.sandbox.docker.conftest import SMALL


async def stopped_from_outside(box) -> None:
    """What a restart of the engine does to a container."""
    await box.container_state.container.kill()


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_an_engine_that_stops_a_sandbox_is_not_the_agent_s_fault(docker, user):
    async with docker.sandbox(SMALL.model_copy(update={"user": user})) as box:
        running = asyncio.create_task(box.exec("sleep 60"))
        await asyncio.sleep(0.5)
        await stopped_from_outside(box)
        for work in (running, box.exec("true"), box.ping(), box.read_bytes("/etc/passwd")):
            with pytest.raises(SandboxError, match="was stopped from outside") as caught:
                await work
            assert not isinstance(caught.value, SandboxKilledError)


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_no_command_can_end_the_first_process(docker, user):
    async with docker.sandbox(SMALL.model_copy(update={"user": user})) as box:
        for signal in (9, 15, 1, 2, 3):
            await box.exec(
                f"for one in /proc/[0-9]*; do kill -{signal} ${{one#/proc/}}; done 2>/dev/null; kill -{signal} -1"
            )
        assert await box.exec("echo alive") == (0, "alive\n", "")


async def test_an_engine_that_hangs_while_a_command_is_killed_is_named(docker, box, monkeypatch):
    """The command's own deadline is over; then nothing of the engine answers any more."""

    async def hangs(*args, **kwargs):
        await asyncio.sleep(3600)

    monkeypatch.setattr(state, "_KILL_S", 0.3)
    process = await box.start("sleep 60")
    for name in ("exec", "kill", "show"):
        monkeypatch.setattr(box.container_state.container, name, hangs)
    with pytest.raises(SandboxError, match="did not answer in time") as caught:
        await process.wait(timeout=0.2)
    assert not isinstance(caught.value, SandboxKilledError)
    monkeypatch.undo()
    with pytest.raises(SandboxError, match="did not answer in time"):  # its command may still run
        await box.exec("true")


async def test_a_kill_that_hangs_ends_with_the_whole_sandbox(docker, box, monkeypatch):
    async def hangs(*args, **kwargs):
        await asyncio.sleep(3600)

    async def kills(why):  # a busy engine takes more than 0.3 s to kill a container
        monkeypatch.setattr(state, "_KILL_S", patience)
        await kill_all(why)

    patience, kill_all = state._KILL_S, box.container_state.kill_all
    monkeypatch.setattr(state, "_KILL_S", 0.3)
    monkeypatch.setattr(box.container_state, "kill_all", kills)
    process = await box.start("sleep 60")
    monkeypatch.setattr(box.container_state, "output_of", hangs)
    with pytest.raises(SandboxKilledError, match="could not be killed"):
        await process.wait(timeout=0.2)
    assert not (await box.container_state.container.show())["State"]["Running"]


async def test_an_engine_that_stops_a_sandbox_while_a_command_is_killed_is_named(docker, box, monkeypatch):
    async def stops(*args, **kwargs):
        with contextlib.suppress(DockerError):
            await stopped_from_outside(box)
        raise SandboxError("went away")

    process = await box.start("sleep 60")
    monkeypatch.setattr(box.container_state, "output_of", stops)
    with pytest.raises(SandboxError, match="stopped from outside") as caught:
        await process.wait(timeout=0.2)
    assert not isinstance(caught.value, SandboxKilledError)


async def test_an_engine_without_room_for_a_process_is_not_the_agent_s_fault(docker, box, monkeypatch):
    process = DockerProcess.__new__(DockerProcess)
    process._state, process._user = box.container_state, "agent"
    process._early = [("stdout", b"runc: fork/exec /proc/self/exe: resource temporarily unavailable")]
    error = await process._refused(126)
    assert not isinstance(error, SandboxKilledError)
    assert "resource temporarily unavailable" in str(error)


async def test_what_is_written_to_a_writable_root_is_limited(docker):
    spec = SMALL.model_copy(update={"read_only": False, "user": "root", "file_mb": 64})
    async with docker.sandbox(spec) as box:
        began = time.monotonic()
        with pytest.raises(SandboxKilledError, match=r"its disk was used up \(disk_mb=64\): it wrote \d+ MiB"):
            await box.exec("i=0; while :; do i=$((i+1)); head -c 8000000 /dev/zero > /var/tmp/f$i; sleep 0.05; done")
        assert time.monotonic() - began < 30
        with pytest.raises(SandboxKilledError, match="its disk was used up"):
            await box.exec("true")


async def test_a_writable_root_may_hold_what_it_was_given(docker):
    spec = SMALL.model_copy(update={"read_only": False, "user": "root", "memory_mb": 512})
    async with docker.sandbox(spec) as box:
        await box.exec("head -c 12000000 /dev/zero > /var/tmp/file; cp /var/tmp/file /work/file", check=True)
        await asyncio.sleep(2.5)
        await box.ping()


async def test_an_engine_with_quotas_is_asked_for_one_and_another_only_once(docker, monkeypatch):
    asked = []
    create = docker.engine.docker.containers.create

    async def creates(body, *, name):
        asked.append(body["HostConfig"].get("StorageOpt"))
        return await create(body, name=name)

    monkeypatch.setattr(docker.engine.docker.containers, "create", creates)
    writable = SMALL.model_copy(update={"read_only": False})
    for spec in (writable, writable, SMALL):
        async with docker.sandbox(spec):
            pass
    asked = [one for one in asked if one is not None]
    if docker.engine.host.quotas:
        assert asked == [{"size": "64m"}, {"size": "64m"}, {}]
    else:
        assert asked == [{"size": "64m"}, {}, {}, {}]


async def test_the_machine_of_sandboxes_is_the_engine_s(docker, monkeypatch):
    info = await docker.engine.docker.system.info()
    assert docker.engine.host.here
    assert (docker.machine.cores <= info["NCPU"], docker.machine.memory_mb <= info["MemTotal"] >> 20) == (True, True)
    monkeypatch.setattr(docker.engine, "host", Host(64.0, 256 << 10, here=False))
    async with SandboxPool(docker, SMALL.model_copy(update={"memory_mb": 2048}), warm=0) as pool:
        lanes = pool.figures().lanes
        assert (lanes["episode"].capacity, lanes["grade"].capacity) == (72, 24)


async def test_a_sandbox_gets_no_more_cores_than_the_engine_has(docker):
    async with docker.sandbox(SMALL.model_copy(update={"cpus": 4096.0})) as box:
        await box.ping()


@pytest.mark.parametrize("read_only", [True, False])
async def test_root_can_write_to_its_work_folder(docker, read_only):
    """The base image's /work is agent's, and root has no rights over the files of others."""
    spec = SMALL.model_copy(update={"read_only": read_only, "user": "root"})
    async with docker.sandbox(spec) as box:
        assert await box.exec("touch new && mkdir folder && stat -c %U . new") == (0, "root\nroot\n", "")
        await box.write_file("other/file", "text")


async def test_an_image_that_is_removed_is_made_again(docker):
    spec = SMALL.model_copy(update={"user": "root", "workdir": "/somewhere"})
    async with docker.sandbox(spec):
        pass
    made = await docker._images.owned(spec)
    await docker.engine.docker.images.delete(made.name, force=True)
    async with docker.sandbox(spec) as box:
        await box.ping()
