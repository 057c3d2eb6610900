"""A label in a prompt is found in the tasks of the whole data, not only in those that are played."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import Env, StepResult, Task
from agentrl.check import CheckInputs, check
from agentrl.check.prompts import for_labels
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer

PLACES = [f"place {chr(97 + n)}" for n in range(10)]


class Asks(Env):
    async def step(self, action):
        return StepResult(done=True, reward=0.0)


class Leaks(Asks):
    """Tells the answer to tasks that a row marks."""

    async def reset(self, task):
        return f"{task.prompt} (it is {task.label})" if task.metadata.get("leaks") else task.prompt


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(load_tokenizer("tiny"))


def found(renderer, cls, tasks, **values):
    given = {"tasks": tasks[:3], "others": tasks[3:], "only": ["prompt"], "process": False, **values}
    return asyncio.run(check(CheckInputs(env=cls, renderer=renderer, **given)))


def weather(leaks=lambda number: True, words=("sunny", "rainy", "windy", "foggy")):
    return [
        Task(id=f"{n}", prompt=f"Weather in {place}?", label=word, metadata={"leaks": leaks(n)})
        for n, (word, place) in enumerate((word, place) for word in words for place in PLACES)
    ]


def test_labels_that_are_equal_in_the_first_tasks_are_compared_with_later_ones(renderer):
    report = found(renderer, Asks, weather())
    assert report.mistakes == []
    assert report.checked["label in prompt"] == "19 tasks"
    assert "label in prompt" not in report.skipped
    [warning] = found(renderer, Leaks, weather()).mistakes
    assert warning.message.startswith("each of 19 prompts holds its own label, such as 'sunny'")


def test_a_leak_in_later_tasks_alone_is_found(renderer):
    [warning] = found(renderer, Leaks, weather(leaks=lambda number: number >= 12)).mistakes
    assert "of 19 prompts holds its own label" in warning.message
    assert found(renderer, Leaks, weather(leaks=lambda number: number == 39)).mistakes == []


def test_choices_in_a_prompt_are_no_leak(renderer):
    tasks = [
        Task(id=f"{n}", prompt=f"In {place}: red or blue?", label=label)
        for n, (place, label) in enumerate(zip(PLACES, ["red", "blue"] * 5, strict=True))
    ]
    assert found(renderer, Asks, tasks).mistakes == []


def test_labels_of_published_rows_are_looked_for(renderer):
    labels = [{"ground_truth": {"target": [name]}, "style": "rule"} for name in ("Ada", "Alan", "Grace", "Kurt")]
    tasks = [Task(id=f"{n}", prompt="Who?", label=label) for n, label in enumerate(labels)]

    class Tells(Asks):
        async def reset(self, task):
            return f"{task.prompt} {task.label['ground_truth']['target'][0]}, say I."

    [warning] = found(renderer, Tells, tasks).mistakes
    assert "'Ada'" in warning.message


def test_without_different_labels_it_says_so(renderer):
    report = found(renderer, Asks, weather(words=("sunny",)))
    assert (
        report.skipped["label in prompt"]
        == "it needs two tasks with different labels that are text; an Env without such labels is fine"
    )


def test_tasks_come_from_all_parts_of_the_data():
    tasks = [Task(id=f"{n}", prompt="p", label=str(n // 100)) for n in range(1000)]
    chosen = for_labels(tasks)
    assert len(chosen) == 16
    assert {task.label for task in chosen} == set(map(str, range(10)))
    assert for_labels([]) == []
