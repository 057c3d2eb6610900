"""What else than sandboxes is left behind: `agentrl sandbox ls` shows it, and `gc` removes it."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from agentrl_sandbox import survey
from agentrl_sandbox.docker.container import FIRST, SANDBOX_VARIABLE
from agentrl_sandbox.docker.orphans import Orphans
from tests.sandbox.docker.conftest import SMALL
from tests.sandbox.engine import ALONE, REQUIRED

SHIM = 'shift; "$@" & echo $!; wait'


@ALONE
async def test_images_are_left_once_no_sandbox_is_there(docker, base, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nWORKDIR /app\nRUN date +%N > /when\n")
    spec = SMALL.model_copy(update={"image": str(tmp_path), "workdir": "/app"})
    async with docker.sandbox(spec):
        assert not [one for one in await survey.left("docker") if one.kind == "image"]
        assert not [one for one in await survey.tidy("docker") if one.kind == "image"]
    left = [one.name for one in await survey.left("docker") if one.kind == "image"]
    assert [name.partition(":")[0] for name in sorted(left)][:2] == ["agentrl-build", "agentrl-ready"]
    assert {one.name for one in await survey.tidy("docker")} >= set(left)
    assert await survey.left("docker") == []
    async with docker.sandbox(spec) as box:  # made again, by a back end that had it before
        assert (await box.exec("pwd")).stdout == "/app\n"
    assert (await docker._engine.docker.images.inspect(base))["Id"]


@pytest.fixture(params=["sandbox", "service"])
def orphan(tmp_path, request):
    """A stand-in for a shim with a sandbox's first process below it, and the socket of its containerd."""
    init = shutil.which("docker-init") or shutil.which("docker-init", path="/usr/libexec/docker:/usr/lib/docker")
    if init is None:
        assert "docker" not in REQUIRED
        pytest.skip("needs docker-init")
    address, name = f"{tmp_path}/containerd.sock", f"docker-{os.urandom(8).hex()}"
    first = ["/bin/sh", "-c", FIRST, name] if request.param == "sandbox" else ["sleep", "1000"]
    words = ["containerd-shim-runc-v2", "-c", SHIM, "-address", address, init, "--", *first]
    variable = {} if request.param == "sandbox" else {SANDBOX_VARIABLE: name}
    shim = subprocess.Popen(
        words,
        executable=shutil.which("bash"),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **variable},
    )
    pid = int(shim.stdout.readline())
    while not Path(f"/proc/{pid}/cmdline").read_text().startswith(init):  # until then it is a copy of the shim
        time.sleep(0.01)
    yield name, address, shim, pid
    for one in (pid, shim.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    shim.wait()
    shim.stdout.close()


async def test_a_container_whose_engine_is_gone_is_found_and_ended(orphan, monkeypatch):
    name, _, shim, pid = orphan
    monkeypatch.setattr("agentrl_sandbox.docker.orphans._folders", lambda pid: [])  # they are this test's own
    (found,) = [one for one in await Orphans().leftovers() if one.name == name]
    assert (found.kind, str(pid) in found.note) == ("process", True)
    assert await Orphans().clear([found]) == [found]
    assert await asyncio.to_thread(shim.wait, 10) in (0, -signal.SIGKILL), "it may end with its child"
    deadline = time.monotonic() + 10
    while any(one.name == name for one in await Orphans().leftovers()):
        assert time.monotonic() < deadline


async def test_a_container_whose_engine_answers_is_left_alone(orphan):
    name, address, shim, _ = orphan
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        assert not [one for one in await Orphans().leftovers() if one.name == name]
    assert [one for one in await Orphans().leftovers() if one.name == name]
    assert shim.poll() is None
