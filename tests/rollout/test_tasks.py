import json
from dataclasses import replace

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import TaskStream, load_tasks
from agentrl.types import Task


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


TOOL = {"type": "function", "function": {"name": "look"}}


def test_reads_every_key_and_fills_in_the_rest(tmp_path):
    full = {"prompt": [{"role": "user", "content": "hi"}], "label": 3, "metadata": {"a": 1}, "tools": [TOOL], "id": 7}
    data = write(tmp_path / "d.jsonl", {**full, "seed": 5}, "\n", {"prompt": "plain"}, {"prompt": "plain"})

    first, second, third = load_tasks(data, split="eval")

    assert first == Task(prompt=full["prompt"], label=3, metadata={"a": 1}, tools=(TOOL,), id="7", seed=5, split="eval")
    assert (second.prompt, second.id, second.label, dict(second.metadata)) == ("plain", "d-3", None, {})
    assert second.seed != third.seed, "rows without a seed get worlds of their own"
    assert load_tasks(data, split="eval")[1].seed == second.seed


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "x"', "not valid JSON"),
        ("[1]\n", "a list, not an object"),
        ("3\n", "a whole number, not an object"),
        ({"label": 1}, 'no "prompt"'),
        ({"prompt": ""}, '"prompt" is empty'),
        ({"prompt": 3}, '"prompt" is a whole number; it must be a string or a list'),
        ({"prompt": ["hi"]}, "prompt[0] is not a message"),
        ({"prompt": "x", "lable": 1}, 'unknown key "lable"'),
        ({"prompt": "x", "metadata": []}, '"metadata" is a list; it must be an object'),
        ({"prompt": "x", "seed": 1.5}, '"seed" is a number; it must be a whole number'),
        ({"prompt": "x", "seed": True}, '"seed" is true'),
        ({"prompt": "x", "tools": None}, '"tools" is null'),
    ],
)
def test_names_file_and_line_of_a_broken_row(tmp_path, line, says):
    data = write(tmp_path / "d.jsonl", {"prompt": "fine"}, line)

    with pytest.raises(ConfigError) as error:
        load_tasks(data, split="train")

    assert str(error.value).startswith(f"{data}:2: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "no task in it"), (b"\n\n", "no task"), (b"\xff\xfe", "not UTF-8")]
)
def test_refuses_a_file_without_tasks(tmp_path, content, says):
    (tmp_path / "d.jsonl").write_bytes(content)

    with pytest.raises(ConfigError, match=says):
        load_tasks(tmp_path / "d.jsonl", split="train")


def test_refuses_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="no such data file"):
        load_tasks(tmp_path / "nothing.jsonl", split="train")


def tasks(n):
    return [Task(prompt="x", id=str(i)) for i in range(n)]


def ids(taken):
    return [task.id for task in taken]


def test_each_epoch_holds_every_task_once_in_another_order():
    stream = TaskStream(tasks(10), seed=3)

    first, second = ids(stream.take(10)), ids(stream.take(10))

    assert sorted(first) == sorted(second) == sorted(ids(tasks(10)))
    assert first != second
    assert first == ids(TaskStream(tasks(10), seed=3).take(10))
    assert first != ids(TaskStream(tasks(10), seed=4).take(10))


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8, 30])
def test_goes_on_exactly_where_it_was_saved(taken):
    stream = TaskStream(tasks(7), seed=0)
    stream.take(taken)
    saved = json.loads(json.dumps(stream.state_dict()))
    expected = ids(stream.take(20))

    again = TaskStream(tasks(7), seed=0)
    again.load_state_dict(saved)

    assert ids(again.take(20)) == expected


def test_take_may_exceed_an_epoch():
    counts = ids(TaskStream(tasks(2), seed=0).take(4))
    assert counts.count("0") == counts.count("1") == 2


def test_says_which_rows_changed_and_goes_on_if_that_is_accepted():
    saved = TaskStream(tasks(9), seed=0)
    saved.take(4)
    state = json.loads(json.dumps(saved.state_dict()))
    corrected = [replace(task, label="new") if task.id in ("2", "7") else task for task in tasks(9)]

    stream = TaskStream(corrected, seed=0)
    with pytest.raises(ConfigError) as error:
        stream.load_state_dict(state)
    assert str(error.value) == (
        "2 of 9 rows of the data changed, row 3 (id 2), 8 (id 7), since the run began; restore the data, or "
        "add --accept-changed-data to continue with it as it is"
    )
    stream.load_state_dict(state, accept_changes=True)
    assert ids(stream.take(20)) == ids(saved.take(20)), "the order is that of before"

    with pytest.raises(ConfigError, match=r"changed, row 1 .*, 5 .id 4. and 4 more, since"):
        TaskStream([replace(task, label="new") for task in tasks(9)], seed=0).load_state_dict(state)
    with pytest.raises(ConfigError, match="the data had 9 rows and has 3, other ones from row 4 on, since"):
        TaskStream(tasks(3), seed=0).load_state_dict(state)
    fewer = TaskStream(tasks(3), seed=0)
    fewer.load_state_dict(state, accept_changes=True)
    assert sorted(ids(fewer.take(3))) == ["0", "1", "2"]


def test_refuses_other_data_and_another_seed():
    saved = TaskStream(tasks(3), seed=0).state_dict()

    with pytest.raises(ConfigError, match="restore the data"):
        TaskStream(tasks(4), seed=0).load_state_dict(saved)
    with pytest.raises(ConfigError, match="seed 0, not 1"):
        TaskStream(tasks(3), seed=1).load_state_dict(saved)
    with pytest.raises(ConfigError, match="at least one"):
        TaskStream([], seed=0)
