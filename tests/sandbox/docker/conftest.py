import os

import pytest

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl_sandbox.docker.images import BASE
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.engine import entered

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
