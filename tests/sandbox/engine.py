"""Back ends of sandboxes in tests: entered where this machine has what they need, else the test is skipped or fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.backend import Backend, open_backend
from tests.sandbox.hosted.vendor import machine, vendor_module

REQUIRED = os.environ.get("AGENTRL_REQUIRE", "").split(",")
"""`.ci/docker.sh` names docker and bubblewrap here: their tests fail where they would skip."""
ALONE = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="needs the engine for itself: .ci/run plays it in one process"
)
"""For tests that count what a killed owner leaves: the reaper of any other process removes it, too."""


@asynccontextmanager
async def entered(name: str) -> AsyncIterator[Backend]:
    """The back end of this name, entered. If it cannot work here, the test is skipped with the reason."""
    try:
        if name == "hosted":
            if name not in REQUIRED:
                pytest.skip("hosted: two minutes of short requests; make soak-sandbox plays them")
            async with entered("bubblewrap"):
                pass  # the stand-in's machines are such
        backend = open_backend(f"hosted:{machine.__module__}:machine" if name == "hosted" else name)
        await backend.__aenter__()
    except (SandboxError, ConfigError) as exc:  # no engine, or no package to talk to it
        if name in REQUIRED:
            raise
        pytest.skip(f"{name}: {exc}")
    with vendor_module() if name == "hosted" else nullcontext():
        try:
            yield backend
        finally:
            await backend.__aexit__(None, None, None)
