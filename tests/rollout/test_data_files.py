"""One content in every format of a data file is the same tasks and the same learned tokens."""

from __future__ import annotations

import bz2
import csv
import datetime as dt
import gzip
import json
import lzma
from decimal import Decimal

import pytest

from agentrl.errors import ConfigError
from agentrl.render import load_renderer
from agentrl.rollout import load_tasks
from agentrl.rollout.data.chat_rows import ChatReader
from agentrl.rollout.data.data_files import count_rows, read_rows
from agentrl.rollout.data.tasks import Columns, TaskFile
from tests.render.markers import HERE, tokenizer_of

pa = pytest.importorskip("pyarrow", reason="pyarrow reads and writes Parquet: pip install pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def call(name, **arguments):
    return {"type": "function", "id": "c1", "function": {"name": name, "arguments": arguments}}


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def user(text):
    return {"role": "user", "content": text}


TEXT = {"type": "string"}
TASKS = [
    {"prompt": "plain", "label": {"answer": "1", "tests": ["a", None]}},
    {"prompt": [user("hi")], "id": "named", "seed": 5, "metadata": {"level": 3}, "label": {"answer": "2"}},
    {"prompt": "x", "tools": [tool("find", query=TEXT, limit={"type": "integer", "minimum": 1})]},
    {"prompt": "y", "tools": [tool("read", path={"type": "string", "enum": ["a", "b"]}), tool("list")]},
    {
        "prompt": "z",
        "metadata": {"nested": {"deep": [{"a": 1}, {"b": "two"}]}, "other": True},
        "label": {"regex": "^a"},
    },
]
MESSAGES = [
    {"prompt": [user("q"), {"role": "assistant", "content": "", "tool_calls": [call("find", query="x", limit=2)]},
                {"role": "tool", "tool_call_id": "c1", "content": "r"}, user("and?")]},
    {"prompt": [user("q"), {"role": "assistant", "content": "", "tool_calls": [call("read", path="a"), call("list")]},
                {"role": "tool", "tool_call_id": "c1", "content": "r"}]},
]  # fmt: skip
PUBLISHED = [
    {"prompt": [user("a")], "reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}}, "data_source": "nq",
     "extra_info": {"index": 1, "split": "test"}},
    {"prompt": [user("b")], "reward_model": {"style": "rule", "ground_truth": {"number": 4}}, "data_source": "math",
     "extra_info": {"index": 2, "level": "hard"}},
]  # fmt: skip
FIXTURES = {
    "messages": MESSAGES,
    "published": PUBLISHED,
    "tasks": [row for row in TASKS if row["prompt"] != [user("hi")]],
}


def as_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.Table.from_pylist(_all_keys(rows)).schema), path)
    return path


def _all_keys(rows):
    """Rows with every key, because Arrow takes the columns from the first."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def packed(path, data, opened):
    with opened(path, "wb") as file:
        file.write(data)
    return path


def zstd(path, mode):
    return pa.output_stream(str(path), compression="zstd")


@pytest.mark.parametrize("name", FIXTURES)
def test_parquet_is_read_as_the_same_rows_of_jsonl(tmp_path, name):
    rows = FIXTURES[name]
    lines = as_jsonl(tmp_path / "d.jsonl", rows)
    table = as_parquet(tmp_path / "d.parquet", rows)
    assert [row for _, row in read_rows(table, "")] == rows
    assert load_tasks(table, split="train") == load_tasks(lines, split="train")
    assert list(TaskFile(table, split="train")) == load_tasks(lines, split="train")


def test_arguments_of_calls_have_no_nulls_of_other_rows(tmp_path):
    table = as_parquet(tmp_path / "d.parquet", MESSAGES)
    calls = [message.get("tool_calls", []) for message in load_tasks(table, split="train")[1].prompt]
    assert [one["function"].get("arguments", {}) for some in calls for one in some] == [{"path": "a"}, {}]


def test_maps_and_their_nulls_are_kept_as_objects(tmp_path):
    kind = pa.map_(pa.string(), pa.string())
    made = pa.table({"prompt": ["p"], "metadata": pa.array([[("a", "1"), ("b", "2")]], kind)})
    pq.write_table(made, tmp_path / "d.parquet")
    assert load_tasks(tmp_path / "d.parquet", split="train")[0].metadata == {"a": "1", "b": "2"}


ODD = {
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
    "took": dt.timedelta(seconds=90),
    "price": Decimal("1.50"),
    "count": Decimal("7"),
    "blank": float("nan"),
}


def test_a_column_that_nobody_asked_for_does_not_refuse_the_file(tmp_path, caplog):
    rows = [{"prompt": "p", "label": "1", "far": float("inf"), **ODD}]
    task = load_tasks(as_parquet(tmp_path / "d.parquet", rows), split="train")[0]
    assert (task.prompt, task.label, task.metadata) == ("p", "1", {})
    assert "left out: far, day, at, took, price, count, blank" in caplog.text
    with pytest.raises(ConfigError, match='no "prompt"'):
        load_tasks(as_parquet(tmp_path / "e.parquet", [{"promt": "p"}]), split="train")


def test_odd_columns_of_published_rows_become_metadata(tmp_path):
    rows = [{"prompt": "p", "reward_model": {"ground_truth": "1"}, **ODD}]
    metadata = load_tasks(as_parquet(tmp_path / "d.parquet", rows), split="train")[0].metadata
    assert metadata == {
        "day": "2026-01-02", "at": "2026-01-02T03:04:00+00:00", "took": 90.0, "price": 1.5, "count": 7,
    }  # fmt: skip


def test_a_label_may_be_a_decimal(tmp_path):
    path = as_parquet(tmp_path / "d.parquet", [{"q": "p", "a": Decimal("2.25")}])
    assert load_tasks(path, split="train", columns=Columns(input_key="q", label_key="a"))[0].label == 2.25


@pytest.mark.parametrize(("ending", "opened"), [("gz", gzip.open), ("bz2", bz2.open), ("xz", lzma.open), ("zst", zstd)])
def test_packed_files(tmp_path, ending, opened):
    rows = [{"prompt": "a"}, {"prompt": "b", "label": "é"}]
    lines = json.dumps(rows[0]) + "\n\n" + json.dumps(rows[1], ensure_ascii=False)
    plain = tmp_path / "d.jsonl"
    plain.write_text(lines)
    path = packed(tmp_path / f"d.jsonl.{ending}", lines.encode(), opened)
    tasks = load_tasks(path, split="train")
    assert tasks == load_tasks(plain, split="train") == list(TaskFile(path, split="train"))
    assert [task.id for task in tasks] == ["d-1", "d-3"]
    assert count_rows(path, "") == 2
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=rf"d\.jsonl\.{ending}: .*"):
        load_tasks(path, split="train")
    path.write_bytes(b"not packed at all")
    with pytest.raises(ConfigError, match=rf"d\.jsonl\.{ending}: .*"):
        TaskFile(path, split="train")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_rows(tmp_path, indent):
    path = tmp_path / "d.json"
    path.write_text(json.dumps(TASKS, indent=indent))
    same = load_tasks(as_jsonl(tmp_path / "d.jsonl", TASKS), split="train")
    assert load_tasks(path, split="train") == same == list(TaskFile(path, split="train"))
    assert count_rows(path, "") == len(TASKS)
    path.write_text(as_jsonl(tmp_path / "d.jsonl", TASKS).read_text())
    assert load_tasks(path, split="train") == same == list(TaskFile(path, split="train"))
    path.write_text('[{"prompt": "a"}, {"prompt": ""}]')
    with pytest.raises(ConfigError, match=r'd\.json:2: "prompt" is empty'):
        load_tasks(path, split="train")
    path.write_text('[{"prompt": "a"}')
    with pytest.raises(ConfigError, match="not valid JSON"):
        load_tasks(path, split="train")


def test_csv(tmp_path, caplog):
    path = tmp_path / "d.csv"
    long = 'word, "quoted"\n' * 20_000
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["prompt", "label", "seed", "metadata", "note"])
        table.writerow([long, "007", "5", '{"a": 1}', "x"])
        table.writerow([json.dumps([user("hi")]), "", "", "", ""])
        table.writerow(["[1] is text", "[1, 2]", "", "", ""])
    one, two, three = load_tasks(path, split="train")
    assert (one.prompt, one.label, one.seed, one.metadata, one.id) == (long, "007", 5, {"a": 1}, "d-1")
    assert (two.prompt, two.label, two.metadata) == ([user("hi")], None, {})
    assert (three.prompt, three.label) == ("[1] is text", "[1, 2]")
    assert "left out: note" in caplog.text
    assert list(TaskFile(path, split="train")) == [one, two, three]
    renamed = Columns(input_key="q", label_key="a")
    (tmp_path / "e.tsv").write_text("q\ta\nwhy\tso\n")
    assert load_tasks(tmp_path / "e.tsv", split="train", columns=renamed)[0].label == "so"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prompt,label\na,b,c\n", "d.csv:1: more fields than the first line names"),
        ('prompt\n"open', "not valid CSV"),
        (b"prompt\n\xff\n", "not UTF-8"),
        ("", "no task in it"),
        ("prompt\n", "no task in it"),
        ("question\nwhy\n", 'no "prompt"'),
    ],
)
def test_a_wrong_table_is_named(tmp_path, text, says):
    (tmp_path / "d.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        load_tasks(tmp_path / "d.csv", split="train")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


CHAT = [
    {
        "messages": [
            user("Which?"),
            {"role": "assistant", "content": None, "tool_calls": [call("find", query="x", limit=2)]},
            {"role": "tool", "tool_call_id": "c1", "content": "none"},
            {"role": "assistant", "content": "None."},
        ],
        "tools": [tool("find", query=TEXT, limit={"type": "integer"}), tool("read", path=TEXT)],
    },
    {
        "messages": [
            user("And?"),
            {"role": "assistant", "content": "So:", "tool_calls": [call("read", path="a")]},
            {"role": "tool", "tool_call_id": "c1", "content": "b"},
            {"role": "assistant", "content": "b."},
        ],
        "tools": [tool("read", path=TEXT)],
    },
]


@pytest.mark.parametrize("template", ["Qwen3-Coder", "Qwen-Qwen2.5-7B-Instruct", "deepseek-ai-DeepSeek-V3.1"])
def test_chat_teaches_the_same_tokens_from_parquet_and_jsonl(tmp_path, template):
    files = as_jsonl(tmp_path / "d.jsonl", CHAT), as_parquet(tmp_path / "d.parquet", CHAT)
    renderer = load_renderer(tokenizer_of(HERE / "real" / f"{template}.jinja"))
    reader = ChatReader(renderer=renderer, context=100_000)
    lines, table = ([reader.read(row).trajectory for _, row in read_rows(file, "")] for file in files)
    assert [one.tokens for one in table] == [one.tokens for one in lines]
    assert [one.loss_mask for one in table] == [one.loss_mask for one in lines]
