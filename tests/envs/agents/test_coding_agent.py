"""Programs that are coding agents: their sandbox, their steps, and the grade of what they leave."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from agentrl import Endpoint, EnvFactory, Limits, StopReason, Task
from agentrl.testing import call, rollout
from agentrl_envs.agents.coding import CodingAgent
from agentrl_envs.agents.start import Start
from agentrl_envs.agents.versions import CLIENTS
from agentrl_envs.coding.problem import Grade, Problem, Step
from agentrl_sandbox import LocalSandbox

PROGRAM = Path(__file__).with_name("small_agent.py")


class Small(CodingAgent):
    program = sys.executable
    tested = ()

    def start(self, endpoint, instruction):
        return Start([self.path, str(PROGRAM), instruction], endpoint.variables())


class Holds:
    """Grades by the words of a file."""

    def __init__(self, name: str, words: str) -> None:
        self.name, self.words = name, words

    async def grade(self, box):
        held = await box.exec(f"cat {self.name}")
        return Grade(float(held.stdout.strip() == self.words), log=f"{self.name} holds {held.stdout!r}")


def load(task):
    steps = [
        Step(f"Write {words} into {name}.", Holds(name, words), name=name, min_score=1.0)
        for name, words in task.metadata["files"].items()
    ]
    return Problem(tuple(steps), spec={"memory_mb": 4096})


def task(**files: str) -> Task:
    return Task(prompt="Write.", metadata={"format": f"{__file__}:load", "files": files})


def write(name: str, words: str):
    return [call("bash", command=f"echo {words} > {name}"), "It is written."]


async def played(task, turns, limits=None, **config):
    async with EnvFactory(Small, {"backend": "local", "size": 1, **config}) as factory:
        return await rollout(factory.make(), task, turns, limits=limits)


@pytest.mark.thorough
async def test_what_it_leaves_is_graded():
    right = await played(task(a="one"), write("a", "one"))
    assert (right.reward, right.stop, right.failure) == (1.0, StopReason.DONE, None)
    assert right.ledger.sampled == right.ledger.trained > 0
    assert right.info["result"] == {"exit_code": 0, "output": "It is written.\n"}
    assert "holds 'one" in right.info["grading"]
    wrong = await played(task(a="one"), write("a", "two"))
    assert (wrong.reward, wrong.failure) == (0.0, None)


@pytest.mark.thorough
async def test_each_step_is_a_start_of_its_own():
    both = [call("bash", command="echo one > a; echo two > b"), "It is written."]  # each conversation plays it
    done = await played(task(a="one", b="two"), both)
    assert (done.reward, len(done.segments), len(done.turns)) == (1.0, 2, 4)
    failed = await played(task(a="wrong", b="two"), both)
    assert (failed.reward, failed.stop, len(failed.segments)) == (0.0, StopReason.DONE, 1)


async def test_a_limit_ends_it_and_its_work_is_graded():
    turns = [call("bash", command="echo one > a"), call("bash", command="true"), call("bash", command="true")]
    cut = await played(task(a="one"), turns, Limits(turns=2, close_s=5.0))
    assert (cut.reward, cut.stop) == (1.0, StopReason.MAX_TURNS)


@pytest.mark.thorough
async def test_a_program_that_is_too_slow_is_ended():
    turns = [call("bash", command="echo one > a; sleep 60"), "never"]
    slow = await played(task(a="one"), turns, agent_s=2.0)
    assert (slow.reward, slow.stop) == (1.0, StopReason.DONE)
    assert slow.info["result"]["exit_code"] != 0


@pytest.mark.parametrize("module", ["claude_code", "codex", "gemini_cli", "mini_swe_agent"])
def test_command_lines_name_the_model_and_are_patient(module):
    endpoint = Endpoint(key="sk-x", url="http://127.0.0.1:1", socket="/s")
    start = import_module(f"agentrl_envs.agents.{module}").command(endpoint, "Do it; 'now'.")
    whole = " ".join([*start.argv, *(f"{key}={value}" for key, value in start.env.items())])
    assert "Do it; 'now'." in start.argv
    assert "3600" in whole
    assert "sk-x" in start.env.values()
    assert "http://127.0.0.1:1" in whole


def test_the_guide_names_the_versions_that_are_pinned():
    guide = (Path(__file__).parents[3] / "docs" / "harnesses.md").read_text()
    harnesses = ["claude-code", "claude-code-2.1.197", "codex", "gemini-cli", "mini-swe-agent", "openai-agents"]
    harnesses += ["langgraph", "strands-agents"]
    assert [name for name in harnesses if CLIENTS[name].version not in guide] == []
    npm = [package for client in ("claude-code", "codex", "gemini-cli") for package in CLIENTS[client].packages]
    assert [package for package in npm if package not in guide] == []


@pytest.mark.thorough
async def test_the_program_is_in_the_environment_of_the_tests(tmp_path):
    (tmp_path / "activate").write_text('export SUITE=$1 PATH="/opt/suite/bin:$PATH"\n')
    activate = f"[ -f {tmp_path}/activate ] && source {tmp_path}/activate testbed; echo loud; false"
    start = Start(["sh", "-c", 'echo "$SUITE $OWN $1"; echo "$PATH" | cut -d: -f1; exit 3', "sh", "it's"], {"OWN": "x"})
    async with LocalSandbox(trusted=True) as box:
        ended = await start.run(box, timeout=20, activate=activate)
        assert (ended.exit_code, ended.stdout) == (3, "testbed x it's\n/opt/suite/bin\n")
        assert (await start.run(box, timeout=20)).stdout.startswith(" x it's\n")
