"""Several data sets with weights, and prompts that are too long."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import TaskStream
from agentrl.rollout.data.stream import Mixture, PromptLimit
from agentrl.types import Task


def source(name, n, **values):
    return TaskStream([Task(prompt="x" * i, id=f"{name}{i}") for i in range(n)], 0, **values)


def mixture(**values):
    return Mixture([source("a", 4, **values), source("b", 9, **values)], [4, 9], [3, 1])


def names(drawn):
    return [one.task.id for one in drawn]


def test_each_source_has_its_share_at_any_time():
    own, drawn = mixture(), Counter()
    for n in range(1, 81):
        drawn[own.draw().task.id[0]] += 1
        assert abs(drawn["a"] - 0.75 * n) <= 1
    assert drawn == {"a": 60, "b": 20}


def test_a_source_that_has_ended_leaves_the_rest_to_the_others():
    own = mixture(epochs=1)
    drawn = names(iter(own.draw, None))
    assert len(drawn) == len(set(drawn)) == 13
    assert own.draw() is None


def test_rows_name_the_task_and_its_source():
    own = mixture()
    for _ in range(8):
        drawn = own.draw()
        assert own.task(drawn.row) == drawn.task
    assert {own.task(row).id for row in range(13)} == {f"a{i}" for i in range(4)} | {f"b{i}" for i in range(9)}


def test_it_resumes():
    one, again = mixture(), mixture()
    for _ in range(7):
        one.draw()
    again.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert names(again.draw() for _ in range(20)) == names(one.draw() for _ in range(20))


def test_weights_are_above_0():
    with pytest.raises(ConfigError, match="weights above 0"):
        Mixture([source("a", 2)], [2], [0])


def test_prompts_that_are_too_long_are_passed_over_and_counted():
    warnings, own = [], mixture(epochs=1)
    own.limit_prompts(PromptLimit(2, lambda task: len(task.prompt), warnings.append))
    assert sorted(names(iter(own.draw, None))) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert own.metrics() == {"too_long_prompts": 7}
    assert len(warnings) == 1
    assert "tokens, more than max_prompt_tokens (2)" in warnings[0]


@pytest.mark.parametrize("values", [{}, {"epochs": 1}])
def test_a_limit_that_no_prompt_keeps_is_refused(values):
    tasks = [Task(prompt="x" * (9 - i), id=str(i)) for i in range(4)]
    own = TaskStream(tasks, 0, **values)
    own.limit_prompts(PromptLimit(2, lambda task: len(task.prompt), lambda line: None))
    with pytest.raises(ConfigError, match="every prompt is longer than max_prompt_tokens; raise it"):
        own.take(1)
