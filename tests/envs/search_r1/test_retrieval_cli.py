"""`agentrl retriever`: what it prints, and how it ends when it cannot go on."""

from __future__ import annotations

import errno
import importlib.util
import json
import os

import pytest
from typer.testing import CliRunner

pytest.importorskip("tantivy", reason="tantivy is not installed")

from agentrl.cli import app
from agentrl_envs.search_r1.retrieval import building
from agentrl_envs.search_r1.retrieval.server import bind


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": str(at), "contents": f"title {at}\ntext {at}"} for at in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*args):
    return CliRunner().invoke(app, ["retriever", *map(str, args)])


def index(corpus):
    return run(corpus, "--index-only")


def test_index_says_what_was_made_and_where(corpus):
    made, found = index(corpus), index(corpus)
    assert made.exit_code == found.exit_code == 0
    assert made.stdout.startswith("5 passages, 0.0 MiB at ")
    assert f"{corpus}.bm25/" in made.stdout
    assert made.stderr == "indexing corpus.jsonl: 0.0 MiB\n"
    assert found.stderr == ""  # nothing was to be made
    assert found.stdout.rpartition(",")[0] == made.stdout.rpartition(",")[0]


def test_a_bad_line_ends_the_command_with_its_place(corpus):
    corpus.write_text('{"id": "1", "contents": "a"}\n{"id": "2"}\n')
    for args in ([corpus, "--index-only"], [corpus, "--port", 0]):
        ended = run(*args)
        assert ended.exit_code == 2
        assert f'error: {corpus}:2 has no "contents" with text; write {{"id": "7"' in ended.stderr


def test_what_cannot_be_read_or_listened_at_is_named(corpus, tmp_path):
    ended = index(tmp_path / "missing.jsonl")
    assert (ended.exit_code, ended.stderr.split(";")[0]) == (2, f"error: there is no corpus {tmp_path}/missing.jsonl")
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        ended = run(corpus, "--port", taken.getsockname()[1])
    assert ended.exit_code == 2
    assert "choose another --port" in ended.stderr
    assert not os.path.exists(f"{corpus}.bm25")  # it is told before anything is indexed


def test_without_tantivy_and_on_a_full_disk_it_says_what_to_do(corpus, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device", str(corpus))

    with monkeypatch.context() as patched:
        patched.setattr(building, "write_index", full)
        ended = index(corpus)
    assert ended.exit_code == 1
    assert ended.stderr.endswith(
        f"error: No space left on device: {corpus}; free some space; no index was made; run the command again\n"
    )
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tantivy" else find_spec(name))
    ended = index(corpus)
    assert ended.exit_code == 2
    assert "pip install 'agentrl-envs[search]'" in ended.stderr
