"""Sandboxes for the tests that every back end of `agentrl.sandbox.Sandbox` passes."""

import pytest

from agentrl_sandbox.fake.backend import FakeBackend
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.backends.fake_shell import fake_shell
from tests.sandbox.engine import fitted


@pytest.fixture
def spec(request):
    """The default spec; `@pytest.mark.parametrize("spec", [{...}], indirect=True)` changes it."""
    return SandboxSpec(**getattr(request, "param", {}))


@pytest.fixture
def closed(backend, spec):
    """A sandbox that is not open yet."""
    return (FakeBackend(fake_shell) if backend.name == "fake" else backend).sandbox(fitted(backend.name, spec))


@pytest.fixture
async def box(closed):
    async with closed as sandbox:
        yield sandbox
