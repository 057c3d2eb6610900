"""Sandboxes for the tests that every back end of `agentrl.sandbox.Sandbox` passes."""

import pytest

from agentrl_sandbox.fake.backend import FakeBackend
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.backends.fake_shell import fake_shell


@pytest.fixture
def spec(request):
    """The default spec; `@pytest.mark.parametrize("spec", [{...}], indirect=True)` changes it."""
    return SandboxSpec(**getattr(request, "param", {}))


@pytest.fixture
def closed(backend, spec):
    """A sandbox that is not open yet."""
    if backend.name in ("hosted", "e2b"):  # what no service promises has to be given up by name
        spec = spec.model_copy(update={"image": spec.image or "a-template", "network": "open", "read_only": False})
    return (FakeBackend(fake_shell) if backend.name == "fake" else backend).sandbox(spec)


@pytest.fixture
async def box(closed):
    async with closed as sandbox:
        yield sandbox
