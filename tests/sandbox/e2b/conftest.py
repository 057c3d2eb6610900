import os

import pytest

from agentrl_sandbox import open_backend
from tests.sandbox.e2b.running import service


@pytest.fixture
def server():
    if "AGENTRL_ENVD" not in os.environ:
        pytest.skip("AGENTRL_ENVD names no program; docs/evidence.md tells which one")
    with service() as running:
        yield running


@pytest.fixture
async def backend(server):
    async with open_backend("e2b") as entered:
        yield entered
    assert server.test()["machines"] == []
