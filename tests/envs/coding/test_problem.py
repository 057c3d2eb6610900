"""The contract between a task format and the coding environment."""

import math
import pickle

import pytest

from agentrl import ConfigError, InfraError, Task
from agentrl_envs.coding.problem import FORMATS, Grade, Problem, Solution, Step, load_problem


class Never:
    async def grade(self, box):
        raise NotImplementedError


def of_task(task):
    return Problem(steps=(Step(task.prompt, Never(), Solution(command="true")),), image="mine")


def not_a_problem(task):
    return "a problem"


def test_a_format_of_ones_own_is_named_by_its_path():
    problem = load_problem(Task(prompt="do it", metadata={"format": f"{__file__}:of_task"}))
    assert (problem.image, problem.steps[0].instruction) == ("mine", "do it")
    assert problem.steps[0].clean


@pytest.mark.parametrize("name", [None, "unheard-of", 3])
def test_an_unknown_format_names_those_there_are(name):
    with pytest.raises(ConfigError, match=f"task 't1'.*{name!r}.*{', '.join(FORMATS)}"):
        load_problem(Task(id="t1", metadata={"format": name}))


def test_a_loader_has_to_return_a_problem():
    with pytest.raises(ConfigError, match="returned str, not a Problem"):
        load_problem(Task(metadata={"format": f"{__file__}:not_a_problem"}))
    with pytest.raises(ConfigError, match="at least one Step"):
        Problem(steps=())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_grade_that_is_no_number_is_an_error_with_the_output_and_not_a_score(value):
    with pytest.raises(InfraError, match=r"'score'.*the verifier said this"):
        Grade(value, log="the verifier said this")
    with pytest.raises(InfraError, match="'tests'"):
        Grade(0.0, {"tests": value})
    assert pickle.loads(pickle.dumps(Grade(1.0, {"tests": 1.0}))) == Grade(1.0, {"tests": 1.0})
