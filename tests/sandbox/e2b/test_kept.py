"""Machines that the service keeps. The stand-in keeps their files; memory is for a real service to keep."""

from __future__ import annotations

import asyncio
import time

import pytest

pytest.importorskip("e2b", reason="needs the extra e2b")

from agentrl import EnvFactory
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.parking import Parking
from agentrl.episode.resume import resume_episode
from agentrl.episode.run import run_episode
from agentrl.errors import SandboxError
from agentrl.sandbox import Snapshot
from agentrl.testing import call
from agentrl_envs.coding import CodingEnv
from agentrl_sandbox import SandboxPool, open_backend
from agentrl_sandbox.e2b import machine as machine_module
from agentrl_sandbox.reaper import sweep
from tests.sandbox.attacks.arena import soon
from tests.sandbox.attacks.task import TASK
from tests.sandbox.e2b.running import SPEC

FOLDERS = "ls /var/tmp/agentrl"


async def test_copies_of_a_kept_machine_are_machines_of_their_own(backend, server):
    async with SandboxPool(backend, SPEC, size=3, warm=0) as pool, pool.acquire() as box:
        await box.write_file("mine", "of all")
        noisy = await box.start("sleep 30")
        kept = await pool.snapshot(box)
        assert {one.sandbox_id for one in await backend.list()} == {box.sandbox_id, f"e2b-{kept.image}"}
        async with pool.acquire(restore=kept) as one, pool.acquire(restore=kept) as two:
            assert len((await one.exec(FOLDERS)).stdout.split()) == 1, "its own command; those of the first are gone"
            await one.write_file("mine", "changed")
            assert [await each.read_file("mine") for each in (box, one, two)] == ["of all", "changed", "of all"]
            await kept.release()
            assert server.test()["snapshots"] == [kept.image], "the service refuses it while copies run"
        await noisy.kill()
        assert await soon(lambda: len(server.test()["machines"]) == 1)
        assert await sweep(backend) == 1
        assert server.test()["snapshots"] == []
        await kept.release()


async def test_an_aborted_coding_episode_goes_on_in_its_machine(renderer, server, tmp_path):
    """Parked after each turn. Another parking place, as another process has it, goes on."""
    write = call("bash", command="sed -i '$d' solution.py; echo '    return a + b' >> solution.py; export N=4")
    place, key = Parking(str(tmp_path / "parked")), f"{7:032x}"
    engine = ScriptedEngine([write, call("bash", command="echo $N; cat solution.py"), call("submit")], renderer)
    parts = {"engine": engine, "renderer": renderer, "options": EpisodeOptions()}
    turns = 0

    def hooks(most):
        def count(*_):
            nonlocal turns
            turns += 1

        return EpisodeHooks(aborted=lambda: turns >= most, on_turn=count, park=lambda one: place.park(one, 60, key))

    async with EnvFactory(CodingEnv, {"backend": "e2b", "size": 1, "spec": SPEC.model_dump()}) as envs:
        await run_episode(envs.make(), TASK, session_id="s", hooks=hooks(1), **parts)
        for most in (2, 9):
            place = Parking(str(tmp_path / "parked"))
            parked = await place.take_key(key, 60)
            assert [one.image for one in parked.machines] == [
                name for name in server.test()["snapshots"] if name not in machine_module.unwanted
            ]
            done = await resume_episode(parked, envs.make(), hooks=hooks(most), **parts)
        assert done.messages[-3]["content"].startswith("4\n"), done.messages
        assert (done.reward, done.failure) == (1.0, None), done
        await place.ended(key)
        await place.close()
    said = server.test()
    assert (said["machines"], said["snapshots"]) == ([], []), "the end of the back end removes what was refused before"


async def test_a_service_that_keeps_no_machines(server):
    server.test(snapshotting=0)
    async with SandboxPool("e2b", SPEC, size=1, warm=0) as pool, pool.acquire() as box:
        assert isinstance(await pool.snapshot(box), Snapshot)
        with pytest.raises(SandboxError, match="snapshot failed at its service"):
            await box.keep()


async def test_one_that_dies_in_the_middle(server, monkeypatch):
    monkeypatch.setattr(machine_module, "_RECONNECT_S", 0.5)
    async with open_backend("e2b") as backend:
        box = await backend.sandbox(SPEC).__aenter__()
        server.test(dies=1)
        with pytest.raises(SandboxError, match="snapshot failed at its service: the service cannot be reached"):
            await backend.keep(box)
        await box.close()


async def test_a_lost_answer_keeps_it_once(backend, server):
    async with backend.sandbox(SPEC) as box:
        server.test(lost=1)
        kept = await backend.keep(box)
        assert server.test()["snapshots"] == [kept.image]
        await kept.release()
        assert server.test()["snapshots"] == []


async def test_a_cancelled_one_is_removed(backend, server):
    async with backend.sandbox(SPEC) as box:
        server.test(slow=3)
        keeping = asyncio.create_task(backend.keep(box))
        await asyncio.sleep(0.1)
        keeping.cancel()
        await asyncio.wait([keeping])
        assert await soon(lambda: not machine_module._PENDING)
        assert server.test()["snapshots"] == []


async def test_the_next_start_removes_those_whose_time_is_over(backend, server, monkeypatch):
    async with backend.sandbox(SPEC) as box:
        await backend.keep(box)
    async with open_backend("e2b"):
        assert len(server.test()["snapshots"]) == 1, "an episode on a disk may need it"
    later = time.time() + SPEC.lifetime_s + 1
    monkeypatch.setattr("agentrl_sandbox.e2b.backend.time.time", lambda: later)
    async with open_backend("e2b"):
        assert server.test()["snapshots"] == []
