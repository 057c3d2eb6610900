"""examples/retool: a Python interpreter in a sandbox, and mathematics graded by the hub."""

import ast
import json
import random
from collections import Counter
from pathlib import Path

import pytest
import yaml

from agentrl import EnvFactory, Limits, StopReason, Task
from agentrl.rollout.data.tasks import load_tasks
from agentrl.slime.config import SlimeConfig
from agentrl.testing import call, rollout
from agentrl.train.config import TrainConfig
from examples.retool.retool import SYSTEM, ReTool, ReToolConfig, player
from tests.sandbox.engine import entered

HERE = Path(__file__).parents[2] / "examples" / "retool"
TASK = Task(prompt="What is 6 times 7?", label="42")
RIGHT = "So it is.\n\nAnswer: \\boxed{42}"


@pytest.fixture(params=["local", "bubblewrap", "docker"])
async def make(request):
    async with entered(request.param):
        pass  # else skipped, with the reason
    async with EnvFactory(ReTool, {"backend": request.param, "size": 2, "seconds": 60, "output": 200}) as envs:
        yield envs.make


def code(text):
    return call("code_interpreter", code=text)


def answers(t):
    return [message["content"] for message in t.messages if message["role"] == "tool"]


@pytest.mark.thorough
async def test_it_is_right_by_code(make):
    t = await rollout(make(), TASK, [code("print(6 * 7)"), RIGHT])
    assert (t.reward, t.stop, t.failure) == (1.0, StopReason.DONE, None)
    assert t.reward_parts == {"acc": 1.0, "calls": 1.0}
    assert [message["content"] for message in t.messages[:2]] == [SYSTEM, TASK.prompt]
    assert answers(t) == ["42\n"]


@pytest.mark.thorough
async def test_what_code_does_wrong_is_told_to_the_model(make):
    turns = [
        "x = 1\nprint(x",
        "import sys\nsys.exit(3)",
        "x = 1",
        "print(x)",
        "print('a' * 1000)",
        "print(input())",
    ]
    t = await rollout(make(), TASK, [*map(code, turns), "I do not know."])
    said = answers(t)
    assert "SyntaxError" in said[0]
    assert (said[1], said[2]) == ("[no output, exit code 3]", "[no output, exit code 0]")
    assert "NameError: name 'x' is not defined" in said[3], "each call is a new process"
    assert said[4] == "a" * 100 + "\n[... 801 bytes left out ...]\n" + "a" * 99 + "\n"
    assert "EOFError" in said[5]
    assert t.failure is None


async def test_code_that_does_not_end_is_stopped_and_the_model_goes_on():
    async with EnvFactory(ReTool, {"backend": "local", "size": 1, "seconds": 0.5}) as envs:
        t = await rollout(envs.make(), TASK, [code("while True: pass"), RIGHT])
    assert answers(t) == ["\n[stopped after 0.5 s]"]
    assert t.reward == 1.0


@pytest.mark.thorough
async def test_an_answer_that_the_model_did_not_write_earns_nothing(make):
    for turns in (
        [code(r"print('Answer: \\boxed{42}')"), "There it stands."],
        [code("print(42)")],
    ):
        t = await rollout(
            make(), Task(prompt=r"Answer: \boxed{42}. Why?", label="42"), turns, limits=Limits(turns=len(turns))
        )
        assert t.reward < 0


@pytest.mark.thorough
@pytest.mark.parametrize(("calls", "reward"), [(0, -1.1), (2, -1.0), (8, -0.7), (12, -0.6)])
async def test_a_wrong_answer_loses_less_the_more_was_calculated(calls, reward):
    turns = [*[code("print(1)")] * calls, r"Answer: \boxed{41}"]
    async with EnvFactory(ReTool, {"backend": "local", "size": 1}) as envs:
        t = await rollout(envs.make(), TASK, turns, limits=Limits(turns=20))
    assert t.reward == pytest.approx(reward)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["bubblewrap", "docker"])
async def test_code_that_uses_up_the_sandbox_ends_well(backend):
    async with entered(backend):
        pass
    spec = {"memory_mb": 64, "disk_mb": 8, "file_mb": 8, "pids": 24}
    bomb = "import os\nfor _ in range(1000):\n    os.fork()"
    turns = [code("x = b'x' * (300 << 20)\nprint(len(x))"), code(bomb), code("print(6 * 7)"), RIGHT]
    async with EnvFactory(ReTool, {"backend": backend, "size": 1, "spec": spec, "seconds": 20}) as envs:
        t = await rollout(envs.make(), TASK, turns)
        again = await rollout(envs.make(), TASK, [code("print(6 * 7)"), RIGHT])
    assert t.failure is None
    if "sandbox_killed" not in t.info:
        assert "MemoryError" in answers(t)[0] or "memory" in answers(t)[0]
        assert t.reward == 1.0
    assert again.reward == 1.0, "the next episode has a sandbox of its own"


@pytest.mark.thorough
async def test_the_player_solves_every_problem_and_its_code_finds_the_label():
    tasks = load_tasks(HERE / "problems.jsonl", split="train")
    assert len(tasks) == 24
    assert len({task.prompt for task in tasks}) == 24
    async with EnvFactory(ReTool, {"backend": "local", "size": 4}) as envs:
        for task in random.Random(0).sample(list(tasks), 6):
            assert (await rollout(envs.make(), task, player(task))).reward == 1.0, task.prompt
    for task in tasks:
        ast.parse(task.metadata["code"])
        assert task.label.lstrip("-").isdecimal()


@pytest.mark.parametrize(
    "prompt", ["What is 6 times 7? Write Answer: $Answer", [{"role": "user", "content": "What is 6 times 7?"}]]
)
async def test_rows_of_dapo_math_are_read_as_they_are(tmp_path, prompt):
    (tmp_path / "dapo-math-17k.jsonl").write_text(json.dumps({"prompt": prompt, "label": "42"}) + "\n")
    (task,) = load_tasks(tmp_path / "dapo-math-17k.jsonl", split="train")
    async with EnvFactory(ReTool, {"backend": "fake"}) as envs:
        for said, reward in (("Answer: 42", 1.0), (RIGHT, 1.0), ("Answer: 43", -1.1)):
            t = await rollout(envs.make(), task, [said])
            assert t.reward == pytest.approx(reward)
            assert Counter(message["role"] for message in t.messages) == {"system": 1, "user": 1, "assistant": 1}


def test_the_configurations_are_read_by_what_they_are_for(tmp_path):
    given = yaml.safe_load((HERE / "evaluate.yaml").read_text())
    config = TrainConfig.make(**given, data=tmp_path / "data", out=tmp_path / "out")
    ReToolConfig.model_validate(config.env_config)
    given = yaml.safe_load((HERE / "slime.yaml").read_text())
    ReToolConfig.model_validate(SlimeConfig.parse("slime.yaml", given["agentrl"]).env_config)


def test_the_env_is_short():
    parts = ast.parse((HERE / "retool.py").read_text()).body
    (env,) = [part for part in parts if getattr(part, "name", "") == "ReTool"]
    assert env.end_lineno - env.lineno < 100
