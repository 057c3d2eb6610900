"""Which tokenizer a benchmark measures with: a real one where there is one, and it says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peers.which_tokenizer.cache_clear()
    monkeypatch.delenv("AGENTRL_TEST_DATA", raising=False)
    monkeypatch.delenv("BENCH_TOKENIZER", raising=False)
    monkeypatch.setattr(peers, "_cached", lambda: False)
    monkeypatch.setattr(peers, "RESULTS", tmp_path / "results")


def test_a_small_one_is_said_with_the_remedy_and_kept_with_the_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    peers.save("without", [])
    peers.load_tokenizer()
    peers.load_tokenizer()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tokenizer: a small tokenizer")
    assert "three times as many tokens; BENCH_TOKENIZER=FOLDER takes a real one" in line
    peers.save("with", [])
    assert "tokenizer" not in json.loads((tmp_path / "results" / "without.json").read_text())
    assert json.loads((tmp_path / "results" / "with.json").read_text())["tokenizer"] == peers.SMALL


def test_a_real_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = peers.load_tokenizer()
    small.save_pretrained(tmp_path / "qwen")
    peers.which_tokenizer.cache_clear()
    capsys.readouterr()
    monkeypatch.setenv("BENCH_TOKENIZER", str(tmp_path / "qwen"))
    assert len(peers.load_tokenizer()) == len(small)
    assert capsys.readouterr().out == f"tokenizer: {tmp_path / 'qwen'}\n"
    peers.which_tokenizer.cache_clear()
    monkeypatch.delenv("BENCH_TOKENIZER")
    monkeypatch.setattr(peers, "_cached", lambda: True)
    assert peers.which_tokenizer() == peers.REAL
