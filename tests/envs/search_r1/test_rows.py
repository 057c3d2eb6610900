"""Search-R1's rows: read as published, and written from questions and answers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agentrl import ConfigError
from agentrl.cli import app
from agentrl.rewards.answers import targets
from agentrl.rollout import load_tasks
from agentrl_envs.search_r1 import make_row, write_rows

PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search as "
    "many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: "
    "total number of death row inmates in the us?\n"
)
PUBLISHED = {
    "id": "train_0",
    "question": "total number of death row inmates in the us?",
    "golden_answers": ["2,718"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": PROMPT}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["2,718"]}},
    "extra_info": {"split": "train", "index": 0},
    "metadata": None,
}
"""A row as in the published nq_hotpotqa_train."""


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def check(task):
    assert task.prompt == PUBLISHED["prompt"]
    assert (task.id, task.label) == ("train_0", PUBLISHED["reward_model"])
    assert targets(task.label) == ["2,718"]
    assert (task.metadata["data_source"], task.metadata["extra_info"]) == ("nq", {"split": "train", "index": 0})


class TestPublished:
    def test_jsonl_is_read_as_it_is(self, tmp_path):
        (task,) = load_tasks(jsonl(tmp_path / "d.jsonl", PUBLISHED), split="train")
        check(task)

    def test_parquet_is_read_as_it_is(self, tmp_path):
        pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        file = tmp_path / "train.parquet"
        pq.write_table(pa.Table.from_pylist([PUBLISHED] * 3), file)
        tasks = load_tasks(file, split="eval")
        assert len(tasks) == 3
        check(tasks[0])

    def test_a_row_without_an_id_is_named_by_its_line(self, tmp_path):
        row = {key: PUBLISHED[key] for key in ("data_source", "prompt", "ability", "reward_model", "extra_info")}
        first, second = load_tasks(jsonl(tmp_path / "d.jsonl", row, row), split="train")
        assert (first.id, second.id) == ("d-1", "d-2")
        assert first.seed != second.seed

    def test_metadata_of_the_row_stays_beside_its_columns(self, tmp_path):
        row = {**PUBLISHED, "metadata": {"level": "hard", "data_source": "x"}}
        (task,) = load_tasks(jsonl(tmp_path / "d.jsonl", row), split="train")
        assert (task.metadata["level"], task.metadata["data_source"]) == ("hard", "nq")

    def test_a_published_row_without_a_prompt_is_refused_by_line(self, tmp_path):
        row = {**PUBLISHED, "prompt": None}
        with pytest.raises(ConfigError, match=r'd\.jsonl:1: no "prompt"'):
            load_tasks(jsonl(tmp_path / "d.jsonl", row), split="train")

    def test_what_is_no_parquet_is_refused(self, tmp_path):
        pytest.importorskip("pyarrow")
        (tmp_path / "d.parquet").write_text("no")
        with pytest.raises(ConfigError, match=r"d\.parquet: not a readable Parquet file"):
            load_tasks(tmp_path / "d.parquet", split="train")

    def test_without_pyarrow_it_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        (tmp_path / "d.parquet").write_text("")
        with pytest.raises(ConfigError, match="pip install pyarrow"):
            load_tasks(tmp_path / "d.parquet", split="train")


class TestWritten:
    QA = tuple(
        {"id": f"{source}{i}", "source": source, "question": f"{source} question {i}", "golden_answers": [f"a{i}"]}
        for source in ("nq", "hotpotqa")
        for i in range(20)
    )

    def test_a_row_is_the_published_one(self):
        row = make_row("total number of death row inmates in the us", ["2,718"], source="nq", extra={"split": "train"})
        assert row["prompt"] == PUBLISHED["prompt"], "with the question mark that it lacked"
        assert row["reward_model"] == PUBLISHED["reward_model"]
        assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]

    def test_each_source_is_split_and_the_split_stays(self, tmp_path):
        qa = jsonl(tmp_path / "qa.jsonl", *self.QA)
        train, test = (load_tasks(file, split="train") for file in write_rows(qa, tmp_path / "a"))
        assert (len(train), len(test)) == (36, 4)
        assert sorted(t.metadata["data_source"] for t in test) == ["hotpotqa", "hotpotqa", "nq", "nq"]
        backwards = jsonl(tmp_path / "qb.jsonl", *reversed(self.QA))
        _, again = write_rows(backwards, tmp_path / "b")
        ids = {t.metadata["extra_info"]["id"] for t in test}
        assert {t.metadata["extra_info"]["id"] for t in load_tasks(again, split="eval")} == ids
        _, other = write_rows(qa, tmp_path / "c", seed=1)
        assert {t.metadata["extra_info"]["id"] for t in load_tasks(other, split="eval")} != ids
        assert (tmp_path / "a/train.jsonl").read_text() == write_rows(qa, tmp_path / "d")[0].read_text()

    def test_a_question_asked_twice_is_in_one_split(self, tmp_path):
        rows = [
            {"question": f"Who {'  IS ' if twice else 'is '}{i}?", "golden_answers": "x"}
            for i in range(20)
            for twice in (0, 1)
        ]
        files = write_rows(jsonl(tmp_path / "qa.jsonl", *rows), tmp_path, test_share=0.5)
        train, test = (
            {" ".join(t.prompt[0]["content"].lower().split()) for t in load_tasks(f, split="train")} for f in files
        )
        assert (len(train), len(test), train & test) == (10, 10, set())

    def test_the_form_with_tools_tells_of_no_tags_to_search(self, tmp_path):
        row = make_row("Who?", ["x"], form="tools")
        assert "<search>" not in row["prompt"][0]["content"]
        assert "<answer>" in row["prompt"][0]["content"]

    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ([], "not an object"),
            ({"golden_answers": ["x"]}, 'no "question"'),
            ({"question": " ", "golden_answers": ["x"]}, 'no "question"'),
            ({"question": "x"}, '"golden_answers" must be'),
            ({"question": "x", "golden_answers": []}, '"golden_answers" must be'),
            ({"question": "x", "golden_answers": [""]}, '"golden_answers" must be'),
            ({"question": "x", "golden_answers": ["x"], "source": 3}, '"source" must be a text'),
        ],
    )
    def test_a_broken_row_is_named_by_file_and_line(self, tmp_path, row, says):
        qa = jsonl(tmp_path / "qa.jsonl", {"question": "x", "golden_answers": ["x"]}, row)
        with pytest.raises(ConfigError) as error:
            write_rows(qa, tmp_path / "out")
        assert str(error.value).startswith(f"{qa}:2: ")
        assert says in str(error.value)
        assert not (tmp_path / "out").exists()


class TestCommand:
    def test_it_writes_both_files_and_counts_their_rows(self, tmp_path):
        qa, out = jsonl(tmp_path / "qa.jsonl", *TestWritten.QA), tmp_path / "data"
        done = CliRunner().invoke(app, ["data", "search-r1", str(qa), "--out", str(out), "--test-share", "0.25"])
        assert (done.exit_code, done.output) == (0, f"{out}/train.jsonl  30 rows\n{out}/test.jsonl  10 rows\n")
        assert len(load_tasks(out / "train.jsonl", split="train")) == 30

    @pytest.mark.parametrize("wrong", ["missing.jsonl", "broken.jsonl"])
    def test_what_it_cannot_read_is_one_line(self, tmp_path, wrong):
        (tmp_path / "broken.jsonl").write_text("{}\n")
        done = CliRunner().invoke(app, ["data", "search-r1", str(tmp_path / wrong), "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert len(done.output.splitlines()) == 1
        assert wrong in done.output
