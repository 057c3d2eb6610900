import os
import shutil
import subprocess

import pytest

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl_sandbox.docker.images import BASE
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.engine import REQUIRED, entered

SMALL = SandboxSpec(memory_mb=256, disk_mb=64, file_mb=16, pids=64)


@pytest.fixture
async def docker():
    async with entered("docker") as backend:
        yield backend


@pytest.fixture
async def box(docker):
    async with docker.sandbox(SMALL) as box:
        yield box


@pytest.fixture
async def base(docker):
    """The name of the image that the tests' sandboxes have."""
    if BASE not in os.environ:
        pytest.skip(f"{BASE} is not set")
    return os.environ[BASE]


@pytest.fixture
def calls(tmp_path_factory, monkeypatch):
    """The file with a line for each call of the command `docker` of PATH, which has BuildKit."""
    program, folder = _with_buildkit(), tmp_path_factory.mktemp("bin")
    if program is None:
        assert "docker" not in REQUIRED, "no command `docker` of PATH has BuildKit"
        pytest.skip("no command `docker` of PATH has BuildKit")
    script = folder / "docker"
    script.write_text(f'#!/bin/sh\necho >> {folder}/calls\nexec {program} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "calls"


def _with_buildkit():
    """The first command `docker` of PATH that has BuildKit."""
    for folder in os.environ["PATH"].split(":"):
        program = shutil.which("docker", path=folder)
        variables = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if program and not subprocess.run([program, "build", "--help"], capture_output=True, env=variables).returncode:
            return program
    return None
