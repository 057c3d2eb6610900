"""Labels that no answer can match are refused before a run, with the file and the lines."""

from __future__ import annotations

import json

import pytest

from agentrl import rewards
from agentrl.errors import ConfigError
from agentrl.rollout import load_tasks
from agentrl.rollout.data.tasks import Columns
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Task

GSM8K = [
    {"question": "How many?", "answer": "24+48 = <<24+48=72>>72 clips.\n#### 72"},
    {"question": "How much?", "answer": "It is\n#### 1,002"},
    {"question": "How far?", "answer": "#### -5"},
]
MATH = ("math", "dapo", "deepscaler", "boxed_math", "boxed_dapo")
TEXT = ("em", "f1", "sub_em", "search_r1", "search_r1_format", "boxed_f1")


def write(path, labels, key="label"):
    path.write_text("\n".join(json.dumps({"prompt": "q", key: label}) for label in labels))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["math", "em", "f1", "sub_em", "dapo"])
async def test_gsm8ks_own_columns(name, tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, GSM8K)))
    grader = getattr(rewards, name)
    columns = Columns(input_key="question", label_key="answer")
    tasks = load_tasks(path, split="train", columns=columns, check=grader.check_task)
    form = {"math": r"So \boxed{%s}", "dapo": "Answer: %s"}.get(name, "<answer>%s</answer>")
    for task, right in zip(tasks, ("72", "1002", "-5"), strict=True):
        for answer, earned in ((right, True), ("71", False), ("24", False)):
            grade = await grader.grade(ModelOutput.of_turns([form % answer], label=task.label))
            assert (getattr(grade, "value", grade) == 1) == earned


@pytest.mark.parametrize("name", [*MATH, *TEXT])
@pytest.mark.parametrize(
    ("label", "says"),
    [
        (None, "no label to grade by"),
        ("", "it is empty; remove the row"),
        ("  \n", "it is empty"),
        ([], "it is empty"),
        (["", " "], "it is empty"),
        ('["72", "73"]', "JSON text"),
        ("['72']", "JSON text"),
        ('{"ground_truth": "72"}', "JSON text"),
        ("7" * 30_000, "30000 characters"),
        ({"a": 5}, "not a right answer"),
    ],
)
def test_labels_that_no_answer_matches(name, label, says):
    with pytest.raises(ConfigError, match=says) as raised:
        getattr(rewards, name).check_task(Task(prompt="q", label=label))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("First add.\nThen it is 72.", "several lines"),
        ("So it is \\boxed{72", "never ends"),
        ('{"value": 72}', "JSON text"),
    ],
)
def test_labels_that_no_mathematical_answer_matches(name, label, says):
    with pytest.raises(ConfigError, match=says):
        getattr(rewards, name).check_task(Task(prompt="q", label=label))


@pytest.mark.parametrize(
    "label", ["72", 72, 0, 1.5, "[1,2]", "[[1,2],[3,4]]", r"\{1,2\}", "So\n$\\boxed{72}$\n.", "x\n#### 72", ["", "72"]]
)
def test_labels_that_a_mathematical_answer_matches(label):
    rewards.math.check_task(Task(prompt="q", label=label))


@pytest.mark.parametrize(
    "label", ["A", "?", 0, '{"name": "Ada"}', "two\nlines", {"target": ["A"]}, ["", "A"], "[1, 2]"]
)
def test_labels_that_a_text_matches(label):
    rewards.em.check_task(Task(prompt="q", label=label))


def test_labels_without_a_unit_test():
    rewards.unit_tests.check_task(Task(prompt="q", label=["assert f(1) == 2"]))
    for label in (None, "", [], {"a": 1}):
        with pytest.raises(ConfigError):
            rewards.unit_tests.check_task(Task(prompt="q", label=label))


def test_a_sum_of_graders_asks_each(tmp_path):
    both = rewards.weighted(em=(rewards.em, 1.0), math=(rewards.math, 1.0))
    both.check_task(Task(prompt="q", label="72"))
    with pytest.raises(ConfigError, match="several lines"):
        both.check_task(Task(prompt="q", label="two\nlines"))


def test_all_refused_rows_are_listed(tmp_path):
    path = write(tmp_path / "tasks.jsonl", ["1", "", "2", "", "a\nb", *[""] * 20])
    with pytest.raises(ConfigError) as raised:
        load_tasks(path, split="train", check=rewards.math.check_task)
    assert str(raised.value).startswith(f"{path}:2: no answer can match the label ''")
    assert str(raised.value).endswith("; other refused lines: 4, 5, 6, 7, 8, 9, 10, 11, 12, 13 and 12 more")
