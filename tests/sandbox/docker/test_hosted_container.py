"""Hosted sandboxes on a machine with a real root and a user beside it: a plain container, as services have them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from agentrl_sandbox import SandboxSpec
from agentrl_sandbox.hosted.backend import HostedBackend
from tests.sandbox.backends.inside import becomes, count, long_time


class Container:
    """slime's surface over `docker exec`."""

    def __init__(self, image):
        self.image, self.sandbox_id = image, ""

    async def __aenter__(self):
        begun = await docker("run", "-d", "--rm", "--network", "none", "--entrypoint", "sleep", self.image, "600")
        self.sandbox_id = begun[1].strip()[:12]
        return self

    async def __aexit__(self, exc_type, exc, tb):
        await docker("rm", "-f", self.sandbox_id)

    async def exec(self, cmd, *, user="root", env=None, timeout=120, check=False, idempotent=True):
        return await docker("exec", "-u", user, self.sandbox_id, "bash", "-l", "-c", cmd, timeout=timeout)

    async def write_file(self, sandbox_path, content, *, user="root"):
        data = content.read_bytes() if isinstance(content, Path) else content
        write = ("sh", "-c", 'cat > "$1"', "sh", sandbox_path)
        assert (await docker("exec", "-i", "-u", user, self.sandbox_id, *write, data=data))[0] == 0


async def docker(*args, data=b"", timeout=60.0):
    process = await asyncio.create_subprocess_exec("docker", *args, stdin=-1, stdout=-1, stderr=-1)
    try:
        out, err = await asyncio.wait_for(process.communicate(data), timeout)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def box(base):
    if shutil.which("docker") is None:
        pytest.skip("it needs the program docker")
    spec = SandboxSpec(image=base, network="open", read_only=False, workdir="/repo", pids=64)
    async with HostedBackend(Container).sandbox(spec) as box:
        yield box


async def test_the_user_is_not_root_and_owns_the_work_folder(box):
    assert (await box.exec("id -un; pwd; touch mine; touch /etc/x")).stdout == "agent\n/repo\n"
    assert await box.exec("id -un; touch /etc/x", user="root") == (0, "root\n", "")
    with pytest.raises(PermissionError):
        await box.write_file("/etc/passwd", "x")
    await box.write_file("a/b", b"\0" * 200_000)
    snapshot = await box.snapshot()
    await box.exec("rm -r a mine; touch other", check=True)
    await box.restore(snapshot)
    assert (await box.exec("ls")).stdout == "a\nmine\n"


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_a_timeout_kills_what_left_its_session_too(box, user):
    word = long_time()
    process = await box.start(f"(setsid sleep {word} &); sleep {word}", user=user)
    assert await becomes(box, word, 2)
    assert (await process.wait(0.1)).timed_out
    assert await count(box, word) == 0


async def test_a_fork_bomb_ends_at_its_deadline_and_the_machine_goes_on(box):
    assert (await box.exec("bomb() { bomb | bomb & }; bomb; sleep 100", timeout=2)).timed_out
    assert (await box.exec("echo alive", check=True)).stdout == "alive\n"
