"""The Env of docs/environments.md, "Sandboxes", exactly as it stands there: played, aborted, gone on with elsewhere."""

from __future__ import annotations

import asyncio
import pickle
import re
from pathlib import Path

import pytest

from agentrl import EnvFactory, EpisodeOptions, Limits, StopReason, Task, resume_episode, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.parking import Parking
from agentrl.testing import call, rollout, tiny_renderer
from agentrl_sandbox.owners import current
from tests.sandbox.engine import entered

GUIDE = Path(__file__).parents[2] / "docs" / "environments.md"
TASK = Task(prompt="What is in data.txt? Write it to answer.txt.", label="42")


@pytest.fixture(scope="module")
def renderer():
    return tiny_renderer()


@pytest.fixture
def terminal(tmp_path):
    """The guide's file, as agentrl loads it."""
    code = re.search(r"```python\n(# terminal\.py\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]
    (tmp_path / "terminal.py").write_text(code)
    return f"{tmp_path}/terminal.py:Terminal"


@pytest.fixture(params=["local", "bubblewrap", "docker"])
async def backend(request):
    async with entered(request.param) as backend:
        yield request.param
        assert [found for found in await backend.list() if found.owner == current()] == []


@pytest.mark.thorough
async def test_the_guides_env(terminal, backend):
    turns = [
        call("bash", command="mkdir -p sub; cd sub; export N=42"),
        call("bash", command="pwd; echo $N > ../answer.txt; exit 3"),
        "Done.",
    ]
    async with EnvFactory(terminal, {"backend": backend}) as envs:
        won = await rollout(envs.make(), TASK, turns)
        lost = await rollout(envs.make(), TASK, ["Nothing."])
        figures = envs.shared.figures()
    assert (won.reward, lost.reward) == (1.0, 0.0)
    assert won.messages[-2]["content"].strip().endswith("/sub")
    assert figures.handed_out == 4
    assert (lost.failure, won.failure) == (None, None)


@pytest.mark.thorough
async def test_a_partial_rollout_of_the_guides_env(terminal, backend, renderer, tmp_path):
    """Aborted while a command runs: that one ends, and the episode goes on in another sandbox with all that it was."""
    turns = [
        call("bash", command="mkdir sub; cd sub; export N=42; echo begun >> ../log; touch ../running; sleep 1.5"),
        call("bash", command='echo "$N" > ../answer.txt; cat ../log; basename "$PWD"'),
        "Done.",
    ]
    parking, tickets, flag = Parking(str(tmp_path / "parked")), [], []

    async def park(parked):
        tickets.append(await parking.park(parked, 60))

    hooks = EpisodeHooks(aborted=lambda: bool(flag), park=park)
    given = {"renderer": renderer, "options": EpisodeOptions(limits=Limits(reset_s=30)), "hooks": hooks}
    async with EnvFactory(terminal, {"backend": backend}) as envs:
        env = envs.make()
        playing = asyncio.create_task(run_episode(env, TASK, engine=ScriptedEngine(turns, renderer), **given))
        async with asyncio.timeout(30):
            while not hasattr(env, "shell") or (await env.shell.box.exec("test -e running")).exit_code:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        flag.append("the host has enough")
        aborted = await playing
        assert (aborted.stop, tickets[0]["how"]) == (StopReason.ABORTED, "snapshot")
    flag.clear()
    async with EnvFactory(terminal, {"backend": backend}) as envs:  # as in another process
        parked = await parking.take(pickle.loads(pickle.dumps(tickets[0])))
        played = await resume_episode(parked, envs.make(), engine=ScriptedEngine(turns[1:], renderer), **given)
    assert played.reward == 1.0
    assert played.messages[-2]["content"].split() == ["begun", "sub"], "the command ran once, and where it was is kept"
