"""A text in all episodes: exact places, bounded work for each request, and runs that grow."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from agentrl.errors import ConfigError
from agentrl.models import load_tokenizer
from agentrl.view import search as searching
from agentrl.view.answers import PageAnswers
from agentrl.view.files import JsonDocument
from agentrl.view.search import TextSearch
from agentrl.view.sources import open_source
from tests.view.made_run import Writer, write_step

NEVER = 60.0


@pytest.fixture
def texts():
    from agentrl.view.texts import load_texts

    return load_texts("tiny")


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.yaml").write_text("model: tiny\n")
    for step in (1, 2):
        write_step(folder, Writer(), step)
    return folder


def places(search):
    return [(name, number) for name, number, *_ in search.rows]


def test_it_finds_what_was_said_in_each_kept_episode(run, texts):
    source, search = open_source(run), TextSearch("it: step 2.")
    search.advance(source, texts, NEVER)

    answer = search.answer(0)
    assert answer["read"] == answer["total"] == 32
    kept = [
        (file.stem, number)
        for file in sorted((run / "index").glob("*.jsonl"))
        for number, line in enumerate(file.read_text().splitlines())
        if "offset" in json.loads(line)
    ]
    assert places(search) == [place for place in kept if place[0] == "step_000002"] != []
    assert answer["unkept"] == 32 - len(kept)
    _, _, outline, before, hit, after, times = answer["rows"][0]
    assert (hit, times, outline["step"]) == ("it: step 2.", 1, 2)
    assert before.endswith("I search for ")
    assert after.startswith("<|im_end|>")


def test_case_makes_no_difference_and_places_are_counted(run, texts):
    search = TextSearch("i SEARCH for", "step_000001")
    search.advance(open_source(run), texts, NEVER)
    assert {name for name, _ in places(search)} == {"step_000001"}
    assert search.rows[0][4] == "I search for"


def test_a_request_reads_for_some_time_and_the_next_one_goes_on(run, texts):
    source, search, rows, counts = open_source(run), TextSearch("search"), [], []
    while not counts or counts[-1] < search.total:
        search.advance(source, texts, 0.0)
        rows += search.answer(len(rows))["rows"]
        counts.append(search.read)
    assert counts == list(range(1, 33)), "one episode a request, if there is no time"
    whole = TextSearch("search")
    whole.advance(source, texts, NEVER)
    assert rows == whole.rows


def test_a_step_that_is_written_meanwhile_is_read_too(run, texts):
    source, search = open_source(run), TextSearch("it: step 3.")
    search.advance(source, texts, NEVER)
    assert (search.rows, search.read) == ([], 32)
    write_step(run, Writer(), 3)
    search.advance(source, texts, NEVER)
    assert (search.read, search.total) == (48, 48)
    assert {name for name, _ in places(search)} == {"step_000003"}


def test_it_ends_at_its_bound(run, texts, monkeypatch):
    monkeypatch.setattr(searching, "MOST", 3)
    search = TextSearch("search")
    search.advance(open_source(run), texts, NEVER)
    assert (len(search.rows), search.answer(0)["full"], search.read < 32) == (3, True, True)


def test_without_a_tokenizer_messages_are_searched(run):
    search = TextSearch("which city")
    search.advance(open_source(run), None, NEVER)
    assert search.rows
    assert search.rows[0][4] == "Which city"


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_searched(tmp_path, texts):
    (tmp_path / "a.jsonl").write_text("{\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a needle"}]}) + "\n")
    search = TextSearch("needle")
    search.advance(open_source(tmp_path), texts, NEVER)
    assert places(search) == [("b.jsonl", 0)]
    assert "a.jsonl:1: not JSON" in search.answer(0)["failed"]


def test_the_page_asks_for_rows_after_those_it_has(run):
    load_tokenizer("tiny")
    answers = PageAnswers([open_source(run)], "tiny")
    rows = []
    for _ in range(100):
        found = answers.answer("search", {"q": "it: step 1.", "from": str(len(rows))})
        rows += found["rows"]
        if found["read"] == found["total"]:
            break
    assert len(rows) == len({(name, number) for name, number, *_ in rows}) > 0
    for number in range(9):
        answers.answer("search", {"q": f"other {number}"})
    assert len(answers._searches) == 4
    with pytest.raises(ConfigError, match="give the text"):
        answers.answer("search", {})


def test_an_image_in_a_message_is_not_searched_as_text():
    parts = [{"type": "image", "image": "data:image/png;base64,iVBOR"}, {"type": "text", "text": "What is it?"}]
    episode = SimpleNamespace(sequences=(), texts=(), messages=[{"role": "user", "content": parts}])
    assert searching.text_of(episode, None) == "What is it?"


def test_a_document_that_did_not_change_is_read_once(tmp_path, monkeypatch):
    file, reads = tmp_path / "trajectory.json", []
    file.write_text("[{}, {}]")
    document = JsonDocument(file)
    monkeypatch.setattr("agentrl.view.files.from_json", lambda raw: reads.append(raw) or json.loads(raw))
    assert (document.refresh(), document.refresh(), len(reads)) == (2, 2, 1)
    file.write_text("[{}, {}, {}]")
    assert (document.refresh(), len(reads)) == (3, 2)
