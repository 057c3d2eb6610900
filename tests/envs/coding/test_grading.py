"""Where a step is graded, on what, and what becomes of a grader that does not end well."""

import asyncio

import pytest

from agentrl.errors import InfraError
from agentrl.sandbox import SandboxKilledError
from agentrl_envs.coding.grading import grade
from agentrl_envs.coding.problem import Grade, Step
from agentrl_envs.coding.work import prepare
from agentrl_sandbox import SandboxPool, SandboxSpec
from tests.sandbox.engine import entered

SPEC = SandboxSpec(workdir="/")


class Looks:
    """Runs a command, and scores 1 if it succeeds."""

    def __init__(self, cmd, error=None):
        self.cmd, self.error, self.box = cmd, error, None

    async def grade(self, box):
        self.box = box.sandbox_id
        if self.error is not None:
            raise self.error
        result = await box.exec(self.cmd)
        return Grade(float(result.exit_code == 0), log=result.stdout)


@pytest.fixture
async def pool():
    async with SandboxPool("local", SPEC, size=1, grade=1, warm=0) as pool:
        yield pool


async def play(pool, *steps, does="true", clean=None):
    """The score of the last step, after the agent has run a command, and whether another sandbox was graded."""
    async with pool.acquire() as box:
        for step in steps:
            await prepare(box, step)
        await box.exec(does, check=True)
        found = await grade(box, steps, pool=pool, spec=SPEC, clean=clean)
        return found, steps[-1].grader.box != box.sandbox_id


async def test_a_clean_sandbox_begins_with_all_steps_so_far(pool):
    first = Step("", Looks("true"), files={"a": "1"}, setup="mkdir .git; echo first > .git/log")
    second = Step("", Looks("[ $(cat a b | tr -d '\\n') = 12 ] && [ $(cat .git/log) = first ]"), files={"b": "2"})
    found, elsewhere = await play(pool, first, second, does="echo hook > .git/hook")
    assert (found.score, elsewhere) == (1.0, True)


async def test_the_caller_may_overrule_where_a_step_is_graded(pool):
    step = Step("", Looks("true"), clean=False)
    assert [(await play(pool, step, clean=clean))[1] for clean in (None, True, False)] == [False, True, False]


@pytest.mark.parametrize("clean", [True, False])
async def test_work_that_ends_the_sandbox_scores_zero_and_says_why(pool, clean):
    step = Step("", Looks("", SandboxKilledError("out of memory")), clean=clean)
    found, _ = await play(pool, step)
    assert (found.score, found.log) == (0.0, "what was graded ended the sandbox: out of memory")


async def test_a_grader_that_does_not_end_is_the_environments_failure(pool):
    with pytest.raises(InfraError, match=r"grading took longer than 0.3 s; raise the task's limit"):
        await play(pool, Step("", Looks("sleep 30"), grade_s=0.3))


async def test_a_time_limit_of_the_graders_own_is_not_renamed(pool):
    with pytest.raises(TimeoutError, match="my own"):
        await play(pool, Step("", Looks("", TimeoutError("my own"))))


async def test_grading_waits_for_no_episode():
    """The pool's only sandbox for episodes is held by the episode that is graded."""
    async with SandboxPool("local", SPEC, size=1, grade=1, warm=0, wait_s=5) as pool, asyncio.timeout(60):
        found, elsewhere = await play(pool, Step("", Looks("true")))
        assert (found.score, elsewhere) == (1.0, True)
        assert pool.figures().handed_out == 2


@pytest.mark.thorough
@pytest.mark.parametrize(("keep", "found"), [(False, "ended"), (True, "running")])
async def test_what_the_agent_left_running_is_ended_before_it_is_graded_there(keep, found):
    async with entered("bubblewrap") as backend:
        spec = SandboxSpec()
        step = Step("", Looks("kill -0 $(cat pid) && echo running || echo ended"), clean=False, keep=keep)
        async with SandboxPool(backend, spec, size=1, grade=1, warm=0) as pool, pool.acquire() as box:
            await box.exec("setsid sleep 300 > /dev/null 2>&1 & echo $! > pid", check=True)
            assert (await box.exec("kill -0 $(cat pid)")).exit_code == 0
            graded = await grade(box, [step], pool=pool, spec=spec)
            assert (graded.score, graded.log) == (1.0, f"{found}\n")
