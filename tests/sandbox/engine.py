"""Back ends of sandboxes in tests: entered where this machine has what they need, else the test is skipped or fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.backend import Backend, open_backend
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.e2b.running import shared_service
from tests.sandbox.hosted.vendor import machine, vendor_module

REQUIRED = os.environ.get("AGENTRL_REQUIRE", "").split(",")
"""`.ci/docker.sh` names docker and bubblewrap here: their tests fail where they would skip."""
SOAK = int(os.environ.get("AGENTRL_SOAK_SANDBOX", "0"))
"""How often `make soak-sandbox` kills. Without it, kills are few and what they hit is small."""
ALONE = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="needs the engine for itself: .ci/run plays it in one process"
)
"""For tests that count what a killed owner leaves: the reaper of any other process removes it, too."""


def fitted(name: str, spec: SandboxSpec) -> SandboxSpec:
    """The spec for a back end of this name: what no service promises has to be given up by name."""
    if name not in ("hosted", "e2b"):
        return spec
    return spec.model_copy(update={"image": spec.image or "a-template", "network": "open", "read_only": False})


@asynccontextmanager
async def entered(name: str) -> AsyncIterator[Backend]:
    """The back end of this name, entered. If it cannot work here, the test is skipped with the reason."""
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(await _around(name))
            named = f"hosted:{machine.__module__}:machine" if name == "hosted" else name
            backend = await stack.enter_async_context(open_backend(named))
        except (SandboxError, ConfigError) as exc:  # no engine, or no package to talk to it
            if name in REQUIRED:
                raise
            pytest.skip(f"{name}: {exc}")
        yield backend


async def _around(name: str) -> AbstractContextManager[object]:
    """What a service's back end needs in a test: the service."""
    if name == "e2b":
        if "AGENTRL_ENVD" not in os.environ:
            raise SandboxError("AGENTRL_ENVD names no program; docs/evidence.md tells which one")
        return shared_service()
    if name != "hosted":
        return nullcontext()
    if name not in REQUIRED:
        pytest.skip("hosted: two minutes of short requests; make soak-sandbox plays them")
    async with entered("bubblewrap"):
        return vendor_module()  # whose machines are such
