"""What only containers do. What all back ends do alike is in tests/sandbox/backends."""

import asyncio
import contextlib
import time

import pytest
from aiohttp import web

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox import owners
from agentrl_sandbox.docker import DockerBackend
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.docker.conftest import SMALL

POLITE_BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)
"""


async def test_it_is_locked_down(box):
    shown = (await box.exec("cat /proc/self/status; id -u; ls /sys/class/net; ulimit -c; env")).stdout
    for line in ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "1000", "lo"):
        assert line in shown.splitlines()
    names = {line.partition("=")[0] for line in shown.splitlines() if "=" in line}
    assert names <= {"HOSTNAME", "PWD", "LOGNAME", "HOME", "LANG", "USER", "SHLVL", "PATH", "_"}


async def test_it_can_be_found_by_its_owner(docker, box):
    (found,) = [found for found in await docker.list() if found.sandbox_id == box.sandbox_id]
    assert found.owner == owners.current()
    assert (found.run, found.gone) == (owners.run_name(), False)
    assert time.time() + 3500 < found.deadline < time.time() + 3700


async def test_what_is_over_is_removed_at_the_next_start(docker):
    box = docker.sandbox(SMALL.model_copy(update={"lifetime_s": 0.5}))
    async with box:
        deadline = time.monotonic() + 10
        while not next(found.gone for found in await docker.list() if found.sandbox_id == box.sandbox_id):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        async with DockerBackend() as another:
            assert box.sandbox_id not in {found.sandbox_id for found in await another.list()}
        with pytest.raises(SandboxError, match=r"was removed from outside: its lifetime_s=0\.5 was over"):
            await box.exec("true")


async def test_the_dead_are_buried(box):
    """Orphans become children of the first process, which waits for them."""
    await box.exec("for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; sleep 0.3")
    assert (await box.exec("ps -e -o stat= | grep -c Z")).stdout == "0\n"


async def test_daemons_die_with_their_command_and_others_stay(box):
    await box.exec("sleep 1001 & echo")
    other = await box.start("env -i setsid -w sleep 1002")
    result = await box.exec("setsid sh -c 'env -i setsid sleep 1003 & env -i sleep 1004 &'; sleep 1005", timeout=0.7)
    assert result.timed_out
    assert (await box.exec("ps -e -o args= | grep '^sleep 100' | sort")).stdout == "sleep 1001\nsleep 1002\n"
    await other.kill()
    assert (await box.exec("ps -e -o args= | grep '^sleep 100'")).stdout == "sleep 1001\n"


async def test_a_command_that_ended_is_told_at_once_though_its_pipes_are_held(box):
    seconds = []
    for _ in range(5):
        begun = time.monotonic()
        assert (await box.exec("sleep 1000 & echo begun")).stdout == "begun\n"
        seconds.append(time.monotonic() - begun)
    assert min(seconds) < 1.9  # the engine tells of it after 2 s


async def test_a_fork_bomb_is_killed_at_its_deadline(box):
    result = await box.exec("bomb() { bomb | bomb & }; bomb; sleep 100", timeout=1)
    assert result.timed_out
    with contextlib.suppress(SandboxKilledError):  # as good: the killer found no room
        assert await box.exec("echo alive") == (0, "alive\n", "")


async def test_a_fork_bomb_left_behind_is_the_sandbox_s_own_fault(box):
    await box.exec(f"python3 -c '{POLITE_BOMB}' & sleep 0.5")

    async def others():
        for _ in range(5):
            await box.exec("true")

    with pytest.raises(SandboxKilledError, match=r"no room for another process \(pids=64\)"):
        await others()


async def test_a_command_killed_for_memory_says_so(box):
    result = await box.exec("exec python3 -c 'bytearray(1 << 30)'")
    assert (result.exit_code, result.stderr) == (137, "killed: the sandbox's memory is used up (memory_mb=256)\n")
    result = await box.exec("kill -9 $$")
    assert (result.exit_code, result.stderr) == (137, "")


async def test_a_sandbox_full_of_files_in_memory_ends_with_the_cause(docker):
    async with docker.sandbox(SandboxSpec(memory_mb=64, disk_mb=400)) as box:

        async def fill():
            for number in range(9):
                await box.exec(f"head -c 40000000 /dev/zero > {number}")

        with pytest.raises(SandboxKilledError, match="memory_mb=64"):
            await fill()


async def test_more_commands_at_once_than_a_client_has_connections_by_default(docker):
    async with docker.sandbox(SandboxSpec(pids=1000)) as box:
        running = await asyncio.gather(*(box.start("cat") for _ in range(101)))
        assert (await box.exec("echo there")).stdout == "there\n"
        await running[0].kill()


async def test_root_has_no_capabilities_and_others_are_users_of_the_image(box):
    assert (await box.exec("id -u; touch /x; chown agent /work", user="root")).stderr.count("\n") == 2
    assert (await box.exec("id -un", user="nobody")).stdout == "nobody\n"
    with pytest.raises(ConfigError, match="the image has no user 'nosuch'; use agent, root"):
        await box.exec("true", user="nosuch")


async def test_an_engine_that_does_not_answer_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(
        SandboxError, match=rf"no container engine answers at unix://{tmp_path}/none.sock; .*DOCKER_HOST"
    ):
        await DockerBackend().__aenter__()


async def test_podman_is_refused(monkeypatch, tmp_path):
    async def version(request):
        return web.json_response({"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]})

    app = web.Application()
    app.router.add_get("/{api}/version", version)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, f"{tmp_path}/podman.sock").start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/podman.sock")
        with pytest.raises(SandboxError, match=r"podman\.sock is podman.*bubblewrap"):
            await DockerBackend().__aenter__()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("workdir", ["work", "/", "/tmp", ""])
async def test_a_work_folder_must_be_one_of_its_own(docker, workdir):
    with pytest.raises(ConfigError, match="workdir"):
        docker.sandbox(SandboxSpec(workdir=workdir))
