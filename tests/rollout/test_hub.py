"""Data sets on the Hub and folders, read by the library datasets: by a stand-in, and by the library if installed."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import load_tasks
from agentrl.rollout.data import hub
from agentrl.rollout.data.data_files import column_names, data_bytes, plain_name
from agentrl.rollout.data.tasks import Columns, TaskFile

pa = pytest.importorskip("pyarrow", reason="pyarrow reads and writes Parquet: pip install pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = Columns(input_key="question", label_key="answer", metadata_key="extra", tool_key="tools")
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
ROWS = [
    {"question": f"{n}+{n}", "answer": str(2 * n), "extra": {"level": n % 3, "why": "x"}, "tools": [TOOL], "odd": n % 2}
    for n in range(1, 8)
]


class StandIn:
    """A Dataset of the library, over a table of Arrow."""

    def __init__(self, table):
        self.table, self.data, self.column_names = table, SimpleNamespace(nbytes=table.nbytes), table.column_names

    def __len__(self):
        return self.table.num_rows

    def __getitem__(self, row):
        return self.table.slice(row, 1).to_pylist()[0]

    def select_columns(self, names):
        return StandIn(self.table.select(names))

    def with_format(self, name):
        assert name == "arrow"
        return self

    def iter(self, batch_size):
        return (self.table.slice(start, batch_size) for start in range(0, len(self), batch_size))


@pytest.fixture(autouse=True)
def forget():
    hub.load_hub.cache_clear()


@pytest.fixture
def library(monkeypatch):
    """A stand-in of the library that has one data set; `asked` are the calls."""
    splits = {"train": StandIn(pa.Table.from_pylist(ROWS)), "test": StandIn(pa.Table.from_pylist(ROWS[:2]))}
    asked = []

    def load_dataset(path, config, *, split=None):
        asked.append((path, config, split))
        if path == "org/offline":
            raise ConnectionError("Couldn't reach 'org/offline' on the Hub (OfflineModeIsEnabled)")
        if path != "org/sums":
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist\non the Hub")
        return splits[split] if split else dict(splits)

    module = SimpleNamespace(load_dataset=load_dataset, asked=asked, disable_progress_bars=lambda: None, splits=splits)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_a_name_on_the_hub_gives_tasks(library):
    train = load_tasks("hub:org/sums", split="train", columns=COLUMNS)
    test = load_tasks("hub:org/sums:main@test", split="eval", columns=COLUMNS)

    assert library.asked == [("org/sums", None, None), ("org/sums", "main", "test")]
    assert [(task.prompt, task.label, task.metadata["level"]) for task in test] == [("1+1", "2", 1), ("2+2", "4", 2)]
    assert (len(train), train[0].id, train[0].tools[0]["function"]["name"]) == (7, "sums-1", "add")
    path = Path("hub:org/sums:main@test[:3]")
    assert (plain_name(path), hub.parse_name(str(path))) == ("sums", ("org/sums", "main", "test[:3]"))
    assert hub.parse_name("hub:org/sums@test[:3]") == ("org/sums", None, "test[:3]")
    assert column_names(Path("hub:org/sums"), "") == ["question", "answer", "extra", "tools", "odd"]
    assert data_bytes(Path("hub:org/sums")) > 0


def test_a_large_one_stays_on_disk(library):
    tasks = TaskFile(Path("hub:org/sums"), split="train", columns=COLUMNS)
    assert [task.prompt for task in tasks] == [row["question"] for row in ROWS]
    assert [task.id for task in tasks] == [f"sums-{number}" for number in range(1, 8)]
    part = TaskFile(Path("hub:org/sums"), split="train", columns=COLUMNS, part=slice(2, 4))
    assert [task.id for task in part] == ["sums-3", "sums-4"]

    hub.load_hub.cache_clear()
    same = TaskFile(Path("hub:org/sums"), split="train", columns=COLUMNS).fingerprint
    assert same == tasks.fingerprint
    hub.load_hub.cache_clear()
    library.splits["train"] = StandIn(pa.Table.from_pylist([*ROWS[:-1], {**ROWS[-1], "answer": "15"}]))
    changed = TaskFile(Path("hub:org/sums"), split="train", columns=COLUMNS)
    assert changed.fingerprint != same
    assert len(same) == 16


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "hub:org/offline",
            r"hub:org/offline: ConnectionError: .*, and the cache has no copy; load it once with a net",
        ),
        (
            "hub:org/other",
            r"cannot be loaded \(FileNotFoundError: Dataset 'org/other' doesn't exist on the Hub\); correct",
        ),
        ("hub:", "hub:: write hub:org/name, hub:org/name:config or hub:org/name:config@split"),
        ("hub:org/sums@", "write hub:org/name"),
    ],
    ids=["no network", "no such set", "no name", "no split"],
)
def test_an_error_is_one_line(library, name, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load_tasks(name, split="train")
    assert "\n" not in str(caught.value)


def test_a_split_must_be_named_if_none_is_train(library):
    library.splits["dev"] = library.splits.pop("train")
    with pytest.raises(ConfigError, match=r"hub:org/sums has the splits test, dev; name one: hub:org/sums@test"):
        load_tasks("hub:org/sums", split="train")
    del library.splits["dev"]
    assert len(load_tasks("hub:org/sums", split="train", columns=COLUMNS)) == 2, "the only one"


def test_without_the_library(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("hub:org/sums", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"the library datasets reads it \(.*\): pip install datasets"):
            load_tasks(name, split="train")


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The real library, with a cache of its own and without a network."""
    for name, value in {"HF_HOME": tmp_path / "cache", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, str(value))
    library = pytest.importorskip("datasets", reason="reads data sets of the Hub: pip install datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return library


def write_every_form(folder):
    """The rows as files named sums, in every format, and as the folders of a mirror of the Hub."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    paths = [folder / name for name in ("sums.jsonl", "sums.jsonl.gz", "sums.jsonl.zst", "sums.json", "sums.parquet")]
    paths[0].write_text(lines)
    paths[1].write_bytes(gzip.compress(lines.encode()))
    with pa.output_stream(str(paths[2]), compression="zstd") as file:
        file.write(lines.encode())
    paths[3].write_text(json.dumps(ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), paths[4])
    paths.append(folder / "sums.csv")
    with paths[-1].open("w", newline="") as file:
        table = csv.DictWriter(file, list(ROWS[0]))
        table.writeheader()
        table.writerows({**row, "extra": json.dumps(row["extra"]), "tools": json.dumps(row["tools"])} for row in ROWS)
    mirror = folder / "org" / "sums"
    mirror.mkdir(parents=True)
    (mirror / "train.jsonl").write_text(lines)
    (mirror / "test.jsonl").write_text(lines)
    return [*paths, mirror, Path(f"hub:{mirror}@train"), Path(f"hub:{mirror}:default@test")]


@pytest.mark.thorough
def test_the_same_rows_in_each_form_are_equal_tasks(datasets, tmp_path):
    forms = write_every_form(tmp_path)
    datasets.load_dataset(str(tmp_path / "org" / "sums")).save_to_disk(str(tmp_path / "saved" / "sums"))
    forms += [tmp_path / "saved" / "sums", Path(f"hub:{tmp_path}/saved/sums@test")]

    first, *others = [load_tasks(form, split="train", columns=COLUMNS) for form in forms]

    assert len(first) == 7
    for form, tasks in zip(forms[1:], others, strict=True):
        assert tasks == first, form
        assert list(TaskFile(form, split="train", columns=COLUMNS)) == first, form


@pytest.mark.thorough
def test_the_library_refuses_in_one_line(datasets, tmp_path):
    (tmp_path / "empty").mkdir()
    write_every_form(tmp_path)
    for name, says in {
        "hub:no/where": "Couldn't reach 'no/where' on the Hub .*, and the cache has no copy",
        f"hub:{tmp_path}/org/sums@dev": 'Unknown split "dev"',
        f"hub:{tmp_path}/org/sums:zz": "'zz' not found",
        str(tmp_path / "empty"): "doesn't contain any data files",
    }.items():
        with pytest.raises(ConfigError, match=says) as caught:
            load_tasks(name, split="train")
        assert "\n" not in str(caught.value)


PROGRAM = """
import json, sys
from pathlib import Path
from agentrl.rollout.data.stream import TaskStream
from agentrl.rollout.data.tasks import TaskFile

def anonymous():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) >> 10

stream = TaskStream(TaskFile(Path(sys.argv[1]), split="train"), 0)
figures = []
for _ in range(3):
    tasks = stream.take(2000)
    figures.append(anonymous())
print(json.dumps([len(set(task.prompt for task in tasks)), figures]))
"""


@pytest.mark.thorough
def test_many_rows_take_no_memory(datasets, tmp_path):
    """The anonymous memory of a process that draws tasks from few and from many rows."""
    pytest.importorskip("torch")
    measured = {}
    for rows in (1_000, int(os.environ.get("AGENTRL_ROWS", "100000"))):
        folder = tmp_path / str(rows)
        folder.mkdir()
        with (folder / "train.jsonl").open("w") as file:
            file.writelines(f'{{"prompt": "question {n} {"x" * 80}", "label": "{n}"}}\n' for n in range(rows))
        program = [sys.executable, "-c", PROGRAM, str(folder)]
        subprocess.run(program, check=True, capture_output=True, env=dict(os.environ))  # fills the cache
        reply = subprocess.run(program, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
        distinct, measured[rows] = json.loads(reply.splitlines()[-1])
        assert distinct == min(rows, 2000)
    few, many = measured.values()
    assert max(many) - max(few) < 50, measured
