"""What an Env's slowness keeps from being checked is told with its limit; a registered name is checked in full."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agentrl import ConfigError, Env, Limits, Task, tool
from agentrl.check import CheckInputs, check, fresh
from agentrl.env.factory import EnvFactory

TASKS = (Task(id="one", prompt="Look."),)
SLOW = "import time\ndef render(): time.sleep(0.2)\n"


def blocking(file: str):
    made: dict = {}
    exec(compile(SLOW, file, "exec"), made)
    return made["render"]


class Waits(Env):
    slow = staticmethod(blocking("/lib/agentrl/render/renderer.py"))

    @tool
    async def look(self) -> str:
        """Look."""
        await asyncio.sleep(0)
        self.slow()
        return "nothing"

    async def score(self, trajectory):
        await asyncio.sleep(0.02)
        await asyncio.sleep(0.02)
        return 0.0


class Blocks(Waits):
    slow = staticmethod(blocking("/lib/library.py"))


def report_of(renderer, env, tasks=TASKS, **given):
    return asyncio.run(check(CheckInputs(env=env, tasks=tasks, renderer=renderer, **given)))


def test_a_misspelt_check_is_refused(renderer):
    with pytest.raises(ConfigError, match=r"there is no check 'leak'; did you mean leaks\?"):
        report_of(renderer, Waits, only=["leak"])


@pytest.mark.thorough
def test_a_registered_name_is_checked_in_a_process_of_its_own():
    envs = EnvFactory("fact_search")
    task = replace(next(iter(envs.cls.tasks(envs.config, "eval"))), id="one")
    order = fresh.FreshOrder("fact_search", {}, task, (), None, None, task, Limits(), 60.0)
    answered = asyncio.run(fresh.play_elsewhere(order))
    assert answered["first"]
    assert not answered["broken"]


@pytest.mark.thorough
def test_what_there_was_no_time_for_names_the_limit_and_the_option(renderer):
    path = f"{__file__}:Waits"
    told = report_of(renderer, path, only=["cancellation", "determinism"], seconds=0.01).skipped
    assert "and may take 0.001 s; `--seconds " in told["in a separate process"]
    assert "a script has 0.01 s for them; `--seconds " in told["cancellation"]
    assert "and may take 0.0005 s; `--seconds " in told["a part of each"]


@pytest.mark.thorough
@pytest.mark.parametrize(("cls", "blames"), [(Waits, False), (Blocks, True)])
def test_what_agentrl_renders_for_the_env_is_not_blamed_on_it(renderer, cls, blames):
    report = report_of(renderer, cls, only=["blocking", "leaks", "robustness"])
    assert bool([one for one in report.findings if one.check == "blocking"]) is blames, report.findings
