"""The attacks of this folder run in each back end that isolates. Each test asserts that the attack is contained and
that its cause is recorded; and at the end of `field`, that a neighbour and this machine are unharmed."""

import pytest

from tests.sandbox.attacks.arena import SMALL, arena
from tests.sandbox.engine import REQUIRED

_notes: dict[str, list[str]] = {}


def pytest_runtest_setup():
    if not {"docker", "bubblewrap", "e2b"} & set(REQUIRED):
        pytest.skip("attacks on sandboxes take minutes: .ci/docker.sh runs them")


@pytest.fixture
def spec(request):
    """A small sandbox; `@pytest.mark.parametrize("spec", [{...}], indirect=True)` changes it."""
    return SMALL.model_copy(update=getattr(request, "param", {}))


@pytest.fixture
async def field(backend, spec):
    async with arena(backend, spec) as field:
        yield field


@pytest.fixture
def note(request):
    """Takes how an attack was contained and what recorded its cause, for the table at the end of the tests."""

    def add(said: str) -> None:
        _notes.setdefault(request.node.name, []).append(" ".join(said.split()))

    return add


def pytest_terminal_summary(terminalreporter):
    if _notes:
        terminalreporter.section("attacks")
        for name, said in _notes.items():
            terminalreporter.write_line(f"{name}: {'; '.join(said)}")
