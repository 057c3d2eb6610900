"""Sandboxes of a service with E2B's protocol. The suite of all back ends is in tests/sandbox/backends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("e2b", reason="needs the extra e2b")

from agentrl import EnvFactory
from agentrl.errors import ConfigError, SandboxError
from agentrl.testing import rollout
from agentrl_envs.coding import CodingEnv, gold
from agentrl_sandbox import open_backend
from agentrl_sandbox.e2b import backend as backend_module
from agentrl_sandbox.e2b import machine as machine_module
from agentrl_sandbox.survey import found
from tests.envs.coding.attacks import attack
from tests.sandbox.attacks.task import TASK
from tests.sandbox.e2b.running import SPEC

COUNT = 16
EPISODES = int(os.environ.get("AGENTRL_SOAK_EPISODES", "16"))


async def test_a_machine_carries_its_owner_and_ends_unless_it_is_refreshed(backend, server, monkeypatch):
    async with backend.sandbox(SPEC.model_copy(update={"network": "none"})) as box:
        (found,) = await backend.list()
        assert (found.sandbox_id, found.image, found.gone) == (box.sandbox_id, "a-template", False)
        (held,) = server.test()["machines"]
        assert held["body"]["timeout"] <= machine_module.KEEP_S
        assert held["body"]["autoPause"] is False
        assert held["body"]["allow_internet_access"] is False
        monkeypatch.setattr(backend_module, "_REFRESH_S", 0.05)
        async with open_backend("e2b") as other:
            other._open = backend._open
            await asyncio.sleep(0.3)
        assert [held["sandboxID"], 600] in server.test()["extended"]


async def test_each_process_sees_and_removes_the_machines_of_all(backend, server):
    async with open_backend("e2b") as other:
        box = await backend.sandbox(SPEC).__aenter__()
        assert [one.sandbox_id for one in await other.list()] == [box.sandbox_id]
        await other.remove([box.sandbox_id, "e2b-never-was"])
        with pytest.raises(SandboxError, match=f"{box.sandbox_id}.*has ended"):
            await box.exec("true")
        await box.close()
        assert await backend.list() == []


async def test_more_machines_than_a_page_are_listed(backend, server, monkeypatch):
    listed, pages = machine_module.e2b.AsyncSandbox.list, []

    def of_two(**options):
        pages.append(options)
        return listed(**{**options, "limit": 2})

    monkeypatch.setattr(machine_module.e2b.AsyncSandbox, "list", of_two)
    boxes = [backend.sandbox(SPEC) for _ in range(5)]
    await asyncio.gather(*(box.__aenter__() for box in boxes))
    assert {one.sandbox_id for one in await backend.list()} == {box.sandbox_id for box in boxes}
    assert pages
    await backend.remove([box.sandbox_id for box in boxes])


async def test_a_pool_of_them_plays_and_grades(server):
    config = {"backend": "e2b", "size": 2, "spec": SPEC.model_dump()}
    async with EnvFactory(CodingEnv, config) as envs:
        done = await rollout(envs.make(), TASK, gold(TASK))
    assert (done.reward, done.failure) == (1.0, None)
    assert server.test()["machines"] == []


async def test_attacks_on_the_reward_score_nothing(server):
    """One of each kind; AGENTRL_REQUIRE=e2b plays all, in tests/sandbox/attacks."""
    attacks = ("reads_the_secret", "a_pipe", "steals_descriptors")
    config = {"backend": "e2b", "size": 3, "spec": SPEC.model_dump(), "command_s": 15}
    async with EnvFactory(CodingEnv, config) as envs:
        done = await asyncio.gather(*(rollout(envs.make(), TASK, attack(name)) for name in attacks))
    assert [(one.reward, one.failure) for one in done] == [(0.0, None)] * 3, done


async def test_requests_wait_while_the_service_limits_them(backend, server):
    server.test(busy=6)  # the client itself tries four times
    async with backend.sandbox(SPEC) as box:
        assert (await box.exec("echo here")).stdout == "here\n"
    assert server.test()["busy"] == 0


async def test_a_creation_whose_answer_is_lost_leaves_no_second_machine(backend, server):
    server.test(lost=1)
    async with backend.sandbox(SPEC) as box:
        assert [one.sandbox_id for one in await backend.list()] == [box.sandbox_id]


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.2, 0.5])
async def test_a_cancelled_creation_leaves_no_machine(backend, after_s):
    box = backend.sandbox(SPEC)
    task = asyncio.create_task(box.__aenter__())
    await asyncio.sleep(after_s)
    task.cancel()
    if (await asyncio.gather(task, return_exceptions=True))[0] is box:
        await box.close()


async def test_it_is_paused_and_resumed_with_its_processes(backend, server):
    async with backend.sandbox(SPEC) as box:
        process = await box.start("sleep 40.25")
        await box.pause()
        assert server.test()["machines"][0]["state"] == "paused"
        assert [one.sandbox_id for one in await backend.list()] == [box.sandbox_id]
        await box.resume()
        assert "sleep 40.25" in (await box.exec("ps -eo args")).stdout
        await process.kill()
        assert (await process.wait()).exit_code == 137


async def test_its_forks_are_sandboxes_of_their_own(backend, server):
    async with backend.sandbox(SPEC) as box:
        await box.write_file("mine", "of both")
        one, two = await box.fork(2)
        await one.write_file("mine", "changed")
        assert [await each.read_file("mine") for each in (box, one, two)] == ["of both", "changed", "of both"]
        assert len({each.sandbox_id for each in await backend.list()}) == 3
        await asyncio.gather(one.close(), two.close())
        server.test(broken=1)
        with pytest.raises(SandboxError, match=r"made 1 of 2 forks.*no room for a fork"):
            await box.fork(2)
        assert [each.sandbox_id for each in await backend.list()] == [box.sandbox_id]


async def test_an_unknown_template_and_user_are_said(backend):
    with pytest.raises(SandboxError, match="template 'no-such-template' not found"):
        async with backend.sandbox(SPEC.model_copy(update={"image": "no-such-template"})):
            pass
    async with backend.sandbox(SPEC) as box:
        with pytest.raises(SandboxError, match="invalid username: 'nobody-knows'"):
            await box.exec("true", user="nobody-knows")


async def test_a_missing_key_a_wrong_one_and_no_service_are_said(server, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", "e2b_wrong")
    with pytest.raises(SandboxError, match=r"refuses the key in E2B_API_KEY.*no such key"):
        await open_backend("e2b").__aenter__()
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(SandboxError, match=r"^e2b: E2B_API_KEY is not set; .*dashboard"):
        await open_backend("e2b").__aenter__()
    monkeypatch.setenv("E2B_API_KEY", "e2b_any")
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(machine_module, "_RECONNECT_S", 0.1)
    with pytest.raises(SandboxError, match="the service cannot be reached"):
        await open_backend("e2b").__aenter__()


@asynccontextmanager
async def owner(count):
    """A process that holds `count` sandboxes; once they are open."""
    script = Path(__file__).with_name("owner.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, str(count), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        for _ in range(count):
            assert await process.stdout.readline() == b"open\n"
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        process._transport.close()


@pytest.mark.timeout(300)
async def test_after_kill_9_of_the_owner_the_next_start_leaves_none(server):
    async with owner(COUNT) as process:
        assert [one.gone for one in await found("e2b")] == [False] * COUNT
        process.kill()
        await process.wait()
    assert [one.gone for one in await found("e2b")] == [True] * COUNT
    assert all(one["body"]["timeout"] <= machine_module.KEEP_S for one in server.test()["machines"])
    async with open_backend("e2b"):
        assert server.test()["machines"] == []


@pytest.mark.timeout(600)
async def test_a_service_that_dies_under_its_episodes_is_their_cause(server, monkeypatch, capsys):
    """Half of the episodes end before, with their right reward; none of the others gets one."""
    monkeypatch.setattr(machine_module, "_RECONNECT_S", 2.0)
    done, died = 0, asyncio.Event()
    config = {"backend": "e2b", "size": 8, "spec": SPEC.model_dump()}

    async def play(envs, number):
        nonlocal done
        trajectory = await rollout(envs.make(), TASK, gold(TASK) if number % 2 else attack("kills_the_tests"))
        done += 1
        if done == EPISODES // 2:
            server.kill()
            died.set()
        return trajectory

    async with EnvFactory(CodingEnv, config) as envs:
        trajectories = await asyncio.gather(*(play(envs, number) for number in range(EPISODES)))
    assert died.is_set()
    failed = [one for one in trajectories if one.failure is not None]
    assert 0 < len(failed) <= EPISODES // 2
    for number, one in enumerate(trajectories):
        if one.failure is None:
            assert one.reward == float(number % 2), (number, one)
        else:
            assert (one.reward, one.failure.kind) == (None, "environment"), (number, one)
            assert "e2b-" in one.failure.error, one.failure
    with capsys.disabled():
        print(f"\n{EPISODES} episodes: {len(failed)} failed by the service, the others' rewards are right")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image": ""}, "name an image"),
        ({"read_only": True}, "read_only: false"),
        ({"sockets": {"/a": "/b"}}, "leave sockets out"),
    ],
)
def test_what_no_service_promises_is_refused(change, says):
    with pytest.raises(ConfigError, match=f"^e2b sandboxes: .*{says}"):
        open_backend("e2b").sandbox(SPEC.model_copy(update=change))
