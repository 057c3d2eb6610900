"""Attacks on the reward: hostile players of a function task. Each episode ends with reward 0 and says why."""

import asyncio
import os

import pytest

from agentrl import EnvFactory, StopReason
from agentrl.rewards import ModelOutput, UnitTests
from agentrl.testing import rollout
from agentrl_envs.coding import CodingEnv, gold
from agentrl_sandbox.spec import SandboxSpec
from tests.envs.coding.attacks import ON_THE_REPORTER, attack
from tests.sandbox.attacks.arena import SERVED, SMALL
from tests.sandbox.attacks.task import TASK
from tests.sandbox.engine import fitted

pytestmark = [pytest.mark.parametrize("backend", SERVED, indirect=True), pytest.mark.timeout(300)]

CAUSES = {
    "prints_passed": "grading",
    "kills_the_tests": "grading",
    "reads_the_secret": "grading",
    "a_pipe": "grading",
    "much_memory_when_graded": "grading",
    "many_processes": "either",
    **dict.fromkeys(ON_THE_REPORTER, "either"),
}
"""Attack -> where the trajectory tells its cause: what the tests wrote, or why the sandbox was killed."""
UNSCORED = {"e2b": {"stops_the_tests_and_speaks"}}
"""Back end -> attacks that end in an environment failure, without a reward: they stop the shells of its requests."""


def scored(backend, names):
    return [name for name in names if name not in UNSCORED.get(backend.name, ())]


async def test_every_attack_scores_nothing_and_says_why(field, backend, note):
    """`field` watches this machine meanwhile. The task's own solution scores 1 beside them."""
    spec = fitted(backend.name, SMALL.model_copy(update={"memory_mb": 128, "cpus": 1.0})).model_dump()
    room, names = asyncio.Semaphore(3), scored(backend, CAUSES)

    async def play(envs, turns):
        async with room:
            return await rollout(envs.make(), TASK, turns)

    async with EnvFactory(CodingEnv, {"backend": backend.name, "size": 3, "spec": spec, "command_s": 15}) as envs:
        right, *done = await asyncio.gather(play(envs, gold(TASK)), *(play(envs, attack(name)) for name in names))
    assert (right.reward, right.stop) == (1.0, StopReason.DONE), right
    told = {}
    for name, trajectory in zip(names, done, strict=True):
        killed = trajectory.info.get("sandbox_killed", "")
        told[name] = f"sandbox_killed: {killed}" if killed else f"grading: {trajectory.info.get('grading', '')[-150:]}"
        assert (trajectory.reward, trajectory.failure) == (0.0, None), (name, trajectory.failure, told[name])
        assert killed or CAUSES[name] == "either" or trajectory.info["grading"].strip(), name
    for name, why in told.items():
        note(f"{name}: {why}")


TRIES = int(os.environ.get("AGENTRL_SOAK_GRADING", "2"))
"""Of each attack on each kind of tests; `make soak-sandbox` makes 100."""
WORK = "def add(a, b):\n    return None\n"
KINDS = {
    "functions": TASK.metadata["test"] + "check(add)\n",
    "pytest": "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_it(x):\n    assert add(x, x) == 2 * x\n",
    "programs": {"inputs": ["1", "2"], "outputs": ["2", "4"]},
}


@pytest.mark.timeout(300 + 60 * TRIES)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_that_the_work_reaches_reports_its_verdict(backend, kind, note):
    """Flooding, stopping, tracing, killing and taking the descriptors of all processes that the work finds."""
    spec = fitted(backend.name, SandboxSpec(memory_mb=128, pids=64, disk_mb=16)).model_dump()
    tests = UnitTests(backend.name, seconds=3, concurrency=4, spec=spec)

    def graded(code):
        return tests.grade(ModelOutput.of_turns([f"```python\n{code}\n```"], label=KINDS[kind]))

    right = await graded("print(2 * int(input()))" if kind == "programs" else WORK.replace("None", "a + b"))
    assert right.value == 1.0
    codes = {name: WORK + source_of(ON_THE_REPORTER[name][0]) for name in scored(backend, ON_THE_REPORTER)}
    for name, code in codes.items():
        found = await asyncio.gather(*[graded(code) for _ in range(TRIES)])
        assert [reward.value for reward in found] == [0.0] * TRIES, name
        note(f"{kind}: {name}: {TRIES} of {TRIES} refused")
    await tests.close()


def source_of(command):
    """The code that an attack appends to the file that is handed in."""
    return command.split("'END_OF_ATTACK'\n", 1)[1].rsplit("\nEND_OF_ATTACK", 1)[0]
