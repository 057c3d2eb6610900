"""Who is blamed for an event loop that is held up: an Env's own line, a library that it awaits, or a busy machine."""

from __future__ import annotations

import asyncio
import sys
from time import sleep

import pytest

from agentrl import Env, Task, tool
from agentrl.check import CheckInputs, check
from agentrl.check.blocking import _Clock, _Line, _Stall
from agentrl.check.places import Place

TASKS = (Task(id="one", prompt="Look."),)
LINE = _Line(Place("env.py", 7), None)


def stall(*, wall: float, worked: float = 0.0, waited: float = 0.0, late: float = 0.0) -> _Stall:
    seen = _Stall(0.0, _Clock(0.0, 0.0, 0.0), _Clock(wall, worked, waited), late)
    seen.lines[LINE] = 5
    return seen


@pytest.mark.parametrize(
    ("seen", "how"),
    [
        (stall(wall=0.08), "sleeps or waits for 80 ms"),
        (stall(wall=0.2, worked=0.2), "computes for 200 ms"),
        (stall(wall=0.08, waited=0.07), None),
        (stall(wall=0.08, late=0.07), None),  # a machine that stops as a whole counts no time in its queue
        (stall(wall=0.2, worked=0.08, waited=0.06, late=0.1), None),
    ],
)
def test_time_that_the_machine_took_is_not_the_envs(seen, how):
    assert seen.blocked() == (how and (LINE, how))


class Client(Env):
    """Awaits a client whose library computes on the loop, as HTTP clients do when they are made."""

    library = None

    @tool
    async def ask(self) -> str:
        """Ask."""
        self.library.connect()
        await asyncio.sleep(0)
        return "answered"

    def score(self, trajectory):
        return 0.0


class Hiccup(Env):
    """Blocks for its first seconds only, as a line does on a machine that is busy for a while."""

    played = 0

    @tool
    async def ask(self) -> str:
        """Ask."""
        if Hiccup.played < 4:
            sleep(0.25)  # noqa: ASYNC251  what this test is about
        await asyncio.sleep(0)
        return "answered"

    def score(self, trajectory):
        Hiccup.played += 1
        return 0.0


def findings(renderer, env):
    report = asyncio.run(check(CheckInputs(env=env, tasks=TASKS, renderer=renderer, only=["blocking", "leaks"])))
    return [finding for finding in report.findings if finding.check == "blocking"]


@pytest.mark.thorough
def test_a_library_that_computes_is_a_warning_that_names_it(renderer, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "slowclient"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "import time\ndef connect():\n    end = time.thread_time() + 0.2\n    while time.thread_time() < end: pass\n"
    )
    monkeypatch.syspath_prepend(folder.parent)
    import slowclient

    monkeypatch.setattr(Client, "library", slowclient)
    try:
        found = findings(renderer, Client)
    finally:
        del sys.modules["slowclient"]
    assert [one.level for one in found] == ["warning"], found
    assert "inside slowclient, on the event loop" in found[0].message
    assert found[0].place.file == __file__


@pytest.mark.thorough
def test_what_does_not_block_again_is_a_warning(renderer):
    found = findings(renderer, Hiccup)
    assert [one.level for one in found] == ["warning"], found
    assert found[0].message.endswith("it did not block when it was played again")
