import pytest

from tests.sandbox.engine import entered

BACK_ENDS = ("local", "fake", "bubblewrap", "docker", "hosted", "e2b")


@pytest.fixture(params=BACK_ENDS)
async def backend(request):
    """Each back end in turn. `@pytest.mark.parametrize("backend", ["docker"], indirect=True)` chooses."""
    async with entered(request.param) as backend:
        yield backend
