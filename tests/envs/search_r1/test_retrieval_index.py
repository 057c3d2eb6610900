"""The index over a corpus: what it finds, what it refuses, and that it is made once and whole."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, InfraError
from agentrl_envs.search_r1.retrieval import Document, building, open_retriever
from agentrl_envs.search_r1.retrieval import index as index_module

pytest.importorskip("tantivy", reason="tantivy is not installed")
from agentrl_envs.search_r1.retrieval.building import open_index

PASSAGES = {
    "1": '"Lyon"\nLyon lies where the Rhône meets the Saône.',
    "2": '"Paris"\nThe Seine flows through Paris; its name is said "Sen".',
    "3": '"Seine"\nA river of France. It is called: the river (of) Paris AND Rouen.',
    "4": '"The Who"\nA band from London.',
}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus.jsonl", [{"id": key, "contents": text} for key, text in PASSAGES.items()])


def ids(found):
    return [document.id for document in found]


def test_title_and_text_are_searched_and_the_best_comes_first(corpus):
    index = open_index(corpus)
    found = index.search("which river flows through Paris?", 2)
    assert ids(found) == ["2", "3"]
    assert found[0] == Document("2", PASSAGES["2"], found[0].score)
    assert found[0].score > found[1].score > 0
    assert sorted(ids(index.search("the rivers of RHONE", 9))) == ["1", "3"]  # stems, without accents
    assert index.documents == 4
    assert index.search("seine seine which rivers flow", 9) == index.search("Which river flows: seine?", 9)


@pytest.mark.parametrize(
    "query",
    [
        'seine "unclosed',
        "seine AND NOT",
        "title:seine",
        "seine) OR (",
        "-seine",
        "+seine^",
        "[seine TO",
        "seine*~2 \\",
        "/seine/",
        "se\ud800 seine \0",
        "{seine}",
        "seine " * 150_000,
    ],
)
def test_nothing_in_a_query_is_syntax(corpus, query):
    assert set(ids(open_index(corpus).search(query, 3))) == {"2", "3"}


@pytest.mark.parametrize(
    "query", ["", "   ", "?!...", "the of and", "\0", "\ud800", "unheard", "x" * 1_000_000, "a" * 50]
)
def test_a_query_without_a_known_word_finds_nothing(corpus, query):
    assert open_index(corpus).search(query, 3) == []


def test_a_bom_blank_lines_and_other_keys_are_read(tmp_path):
    path = tmp_path / "odd.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 7, "contents": "seven", "source": "x"}\r\n\n  \n{"id": "8", "contents": "eight \\ud800"}'
    )
    index = open_index(path)
    assert index.documents == 2
    assert index.search("seven", 1)[0].id == "7"
    assert index.search("eight", 1)[0].contents == "eight \ufffd"


BAD = {
    "bad JSON": (b'{"id": "2", "contents": ', "corpus.jsonl:3 is not JSON"),
    "no UTF-8": (b'{"id": "2", "contents": "\xff"}', "corpus.jsonl:3 is not JSON"),
    "no object": (b'["2", "text"]', "corpus.jsonl:3 is not a JSON object"),
    "nested": (b"[" * 100_000, "corpus.jsonl:3 is not JSON"),
    "no contents": (b'{"id": "2", "text": "b"}', 'corpus.jsonl:3 has no "contents"'),
    "contents that are no text": (b'{"id": "2", "contents": ["b"]}', 'corpus.jsonl:3 has no "contents"'),
    "empty contents": (b'{"id": "2", "contents": " "}', 'corpus.jsonl:3 has no "contents"'),
    "no id": (b'{"contents": "b"}', 'corpus.jsonl:3 has no "id"'),
    "an id that is no name": (b'{"id": true, "contents": "b"}', 'corpus.jsonl:3 has no "id"'),
    "an id twice": (b'{"id": 1, "contents": "b"}', "corpus.jsonl:3 has the id '1' of line 1"),
}


@pytest.mark.parametrize(("line", "error"), BAD.values(), ids=BAD)
def test_a_bad_line_is_named_and_leaves_no_index(tmp_path, line, error):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "1", "contents": "a"}\n\n' + line + b'\n{"id": "3", "contents": "c"}\n')
    with pytest.raises(ConfigError, match=re.escape(error)):
        open_index(path)
    assert os.listdir(tmp_path / "corpus.jsonl.bm25") == []


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_corpus_without_passages_is_refused(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"empty.jsonl holds no passage"):
        open_index(path)


def test_what_is_no_file_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="there is no corpus"):
            open_index(place)


def test_without_tantivy_it_says_what_to_install(corpus, monkeypatch):
    monkeypatch.setattr(index_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl-envs\[search\]'"):
        open_index(corpus)


@pytest.fixture
def builds(monkeypatch):
    made = []
    real = building.write_index
    monkeypatch.setattr(building, "write_index", lambda *args: made.append(1) or real(*args))
    return made


def test_an_index_is_made_once_and_again_when_the_content_changes(corpus, builds):
    first = open_index(corpus)
    assert open_index(corpus).folder == first.folder
    os.utime(corpus, ns=(1, 1))  # only the time has changed
    assert open_index(corpus).folder == first.folder
    assert len(builds) == 1
    stat = corpus.stat()
    corpus.write_text(corpus.read_text().replace("Lyon", "Nice"))
    os.utime(corpus, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # size and time as before
    second = open_index(corpus)
    assert ids(second.search("nice", 3)) == ["1"]
    assert ids(first.search("lyon", 3)) == ["1"]  # who has the old one open keeps it
    assert len(builds) == 2
    assert os.listdir(second.folder.parent) == [second.folder.name]


@pytest.mark.parametrize("harm", ["segment", "meta.json", "corpus.json", "format", "documents"])
def test_a_damaged_index_is_made_anew(corpus, builds, harm):
    folder = open_index(corpus).folder
    if harm == "segment":
        next(folder.glob("*.store")).unlink()
    elif harm in ("format", "documents"):
        about = json.loads((folder / "corpus.json").read_text())
        (folder / "corpus.json").write_text(json.dumps({**about, harm: 0}))
    else:
        (folder / harm).write_text("{")
    assert ids(open_index(corpus).search("lyon", 3)) == ["1"]
    assert len(builds) == 2


def test_a_corpus_that_changes_meanwhile_is_refused(corpus):
    asked = []

    def grow(done, size):
        with corpus.open("a") as file:
            file.write(f'{{"id": "late{len(asked)}", "contents": "late"}}\n')
        asked.append(done)

    with pytest.raises(ConfigError, match="was changed while it was indexed"):
        open_index(corpus, grow)
    assert open_index(corpus).documents == 4 + len(asked)


def test_several_that_start_at_once_make_one_index(corpus, builds):
    with ThreadPoolExecutor(8) as pool:
        indexes = list(pool.map(open_index, [corpus] * 8))
    assert len(builds) == 1
    assert {index.folder for index in indexes} == {indexes[0].folder}


KILLED = """
import os, signal, sys
from pathlib import Path
from agentrl_envs.search_r1.retrieval import building
building._Corpus.write = lambda self, folder: os.kill(os.getpid(), signal.SIGKILL)
building.open_index(Path(sys.argv[1]))
"""


@pytest.mark.thorough
def test_a_build_that_was_killed_is_not_taken_for_whole(corpus, builds):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(corpus)], check=False)
    assert ended.returncode == -signal.SIGKILL
    home = corpus.with_name("corpus.jsonl.bm25")
    assert sorted(os.listdir(home)) == ["building", "lock"]
    assert ids(open_index(corpus).search("lyon", 3)) == ["1"]
    assert len(builds) == 1
    assert "building" not in os.listdir(home)


def test_a_read_only_folder_is_left_alone(corpus, monkeypatch, tmp_path_factory, builds):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    corpus.parent.chmod(0o555)
    try:
        first, second = open_index(corpus), open_index(corpus)
    finally:
        corpus.parent.chmod(0o755)
    assert os.listdir(corpus.parent) == ["corpus.jsonl"]
    assert first.folder == second.folder
    assert first.folder.is_relative_to(cache)
    assert len(builds) == 1


def test_a_full_disk_is_told_and_leaves_nothing(corpus, monkeypatch):
    real = shutil.disk_usage(corpus)
    monkeypatch.setattr(index_module, "_HEAP_BYTES", 1)  # tantivy refuses, as it does when it cannot write
    with pytest.raises(ConfigError, match=r"no index could be written into .* MiB free there: "):
        open_index(corpus)
    monkeypatch.setattr(index_module.shutil, "disk_usage", lambda path: real._replace(free=0))
    with pytest.raises(OSError, match="No space left on device"):
        open_index(corpus)
    assert os.listdir(corpus.with_name("corpus.jsonl.bm25")) == []


async def test_a_corpus_is_a_retriever_in_this_process(corpus, caplog):
    retriever = open_retriever(str(corpus))
    with pytest.raises(ConfigError, match="is not open"):
        await retriever.search("lyon", 1)
    with caplog.at_level(logging.INFO, "agentrl"):
        async with retriever:
            found = await asyncio.gather(*[retriever.search(word, 1) for word in ("lyon", "who", "seine", "of the")])
            with pytest.raises(ConfigError, match="topk is 0"):
                await retriever.search("lyon", 0)
    assert [ids(one) for one in found] == [["1"], ["4"], ["3"], []]
    assert "opening the index" in caplog.text


async def test_a_disk_without_room_is_the_worlds_failure(corpus, monkeypatch):
    monkeypatch.setattr(building, "write_index", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InfraError, match=r"could not be made: .*No space left"):
        async with open_retriever(str(corpus)):
            pass


async def test_cancelling_ends_the_build_and_removes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_CHECKED_EVERY", 1)
    corpus = write(tmp_path / "corpus.jsonl", [{"id": at, "contents": f"word{at}"} for at in range(20)])
    begun, going_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop, real = asyncio.get_running_loop(), building.open_index

    def progress(done, size):
        loop.call_soon_threadsafe(begun.set)
        going_on.wait(10)

    def watched(*args):
        try:
            real(*args)
        finally:
            ended.set()

    monkeypatch.setattr(building, "open_index", watched)
    task = asyncio.create_task(building.open_in_thread(corpus, progress))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    going_on.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert os.listdir(Path(f"{corpus}.bm25")) == []
