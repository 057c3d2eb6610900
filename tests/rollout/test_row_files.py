"""Files that stay on disk: the same rows, tasks and errors as those that are read at once; orders that are computed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import TaskStream, load_tasks
from agentrl.rollout.data.row_files import Permutation, RowFile
from agentrl.rollout.data.tasks import Columns, TaskFile

ROWS = [
    {"prompt": "a", "label": 1, "metadata": {"k": "é"}},
    {"prompt": [{"role": "user", "content": "b"}], "id": "named", "seed": 5},
    {"prompt": "c", "metadata": '{"as": "text"}', "tools": '[{"name": "look", "parameters": {}}]'},
]
LINES = "\ufeff" + "\n".join(
    [json.dumps(ROWS[0], ensure_ascii=False), "", json.dumps(ROWS[1]), "  ", json.dumps(ROWS[2])]
)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "d.jsonl").write_text(LINES, encoding="utf-8")
    return tmp_path / "d.jsonl"


@pytest.fixture
def parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": f"q{i}", "answer": i, "about": json.dumps({"n": i}), "unused": "x"} for i in range(2500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet", row_group_size=700)
    return tmp_path / "d.parquet"


COLUMNS = Columns(input_key="question", label_key="answer", metadata_key="about")


def test_a_file_on_disk_has_the_tasks_of_one_in_memory(data):
    tasks = TaskFile(data, split="train")
    assert list(tasks) == load_tasks(data, split="train")
    assert [task.id for task in tasks] == ["d-1", "named", "d-5"]
    assert tasks[2].metadata == {"as": "text"}
    assert tasks[2].tools[0]["function"]["name"] == "look"
    assert list(tasks[1:]) == [tasks[1], tasks[-1]]


def test_parquet_by_columns(parquet):
    tasks = TaskFile(parquet, split="train", columns=COLUMNS)
    assert list(tasks) == load_tasks(parquet, split="train", columns=COLUMNS)
    assert (tasks[1999].prompt, tasks[1999].label, tasks[1999].metadata) == ("q1999", 1999, {"n": 1999})
    assert "unused" not in RowFile(parquet, "", COLUMNS.names())[0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not valid JSON"),
        ('{"promt": "x"}', 'no "prompt"'),
        ('{"prompt": "x", "metadata": "no JSON"}', "metadata"),
    ],
)
def test_a_wrong_row_is_named_when_it_is_drawn(data, line, says):
    data.write_text('{"prompt": "a"}\n\n' + line)
    tasks = TaskFile(data, split="train")
    assert tasks[0].prompt == "a"
    with pytest.raises(ConfigError, match=f"d.jsonl:3: .*{says}") as found:
        tasks[1]
    with pytest.raises(ConfigError) as at_once:
        load_tasks(data, split="train")
    assert str(found.value) == str(at_once.value)


def test_the_check_of_a_task_names_its_row(data):
    def check(task):
        if task.id == "named":
            raise ConfigError("no label")

    with pytest.raises(ConfigError, match=r"d\.jsonl:3: no label"):
        TaskFile(data, split="train", check=check)[1]


def test_no_row_is_an_error(tmp_path):
    (tmp_path / "d.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="no task in it"):
        TaskFile(tmp_path / "d.jsonl", split="train")
    with pytest.raises(ConfigError, match="no such data file"):
        TaskFile(tmp_path / "e.jsonl", split="train")


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_a_computed_order_has_every_row_once(n):
    order = Permutation(n, "0/0")
    assert sorted(order) == list(range(n))
    assert list(order) == list(Permutation(n, "0/0"))
    if n > 64:
        assert list(order) != list(Permutation(n, "0/1"))
        assert sum(abs(a - b) == 1 for a, b in pairwise(order)) < 10
    with pytest.raises(IndexError):
        order[n]


@pytest.mark.thorough
def test_a_computed_order_is_even():
    """Where row 0 comes in a thousand epochs: chi-squared over ten tenths stays below the 0.1 % bound of 27.9."""
    places = Counter(list(Permutation(100, f"7/{epoch}")).index(0) // 10 for epoch in range(1000))
    assert sum((places[tenth] - 100) ** 2 / 100 for tenth in range(10)) < 27.9


def test_a_stream_from_disk_resumes_and_sees_a_change(data):
    data.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(50)))

    def stream():
        return TaskStream(TaskFile(data, split="train"), 3)

    one = stream()
    first = [one.draw() for _ in range(70)]
    state = json.loads(json.dumps(one.state_dict()))
    assert len(json.dumps(state)) < 2000
    assert len({drawn.row for drawn in first[:50]}) == 50
    rest = [one.draw().task.id for _ in range(70)]

    again = stream()
    again.load_state_dict(state)
    assert [again.draw().task.id for _ in range(70)] == rest
    assert again.task(first[0].row) == first[0].task

    data.write_text(data.read_text() + '{"prompt": "new"}\n')
    with pytest.raises(ConfigError, match="the data changed since the run began"):
        stream().load_state_dict(state)
    stream().load_state_dict(state, accept_changes=True)
