"""The fast BPE: the tokenizer's tokens, and off at the first text for which it has others."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from agentrl.errors import ConfigError
from agentrl.render import fast_bpe, load_renderer
from agentrl.render.fast_bpe import VARIABLE, FastBpe, fast_encoder_of, prove
from agentrl.render.hard_texts import hard_texts
from agentrl.types import Raw
from tests.render.conftest import TAGS, chatml_tokenizer, llama_tokenizer

fastokens = pytest.importorskip("fastokens")
READ = fastokens.Tokenizer.from_json_str


@pytest.fixture(autouse=True)
def on(monkeypatch, tmp_path):
    """A load waits for the proof, and proofs lie in a folder of the test."""
    monkeypatch.setenv(VARIABLE, "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = dict(fast_bpe.BPES)
    yield
    fast_bpe.BPES.clear()
    fast_bpe.BPES.update(before)


@pytest.fixture
def proofs(monkeypatch):
    """The proofs that were made, in this process in place of another, and always in favour."""
    made: list[str] = []
    monkeypatch.setattr(fast_bpe, "_proved", lambda serialized, background: made.append(serialized) or "")
    return made


def loaded(tokenizer: Any) -> FastBpe:
    fast_encoder_of(tokenizer)
    return fast_bpe.BPES[tokenizer]


def own(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def prose(seed: int) -> str:
    """A text that no list of hard texts has."""
    pick = random.Random(seed)
    words = ["".join(pick.choices("etaoinshrdluE 'é晴0.\n<|", k=pick.randrange(1, 12))) for _ in range(80)]
    return " ".join(words)


@pytest.mark.parametrize("make", [lambda: chatml_tokenizer(*TAGS), llama_tokenizer], ids=["chatml", "llama"])
def test_it_gives_the_tokens_of_the_tokenizer(make, proofs):
    tokenizer = make()
    encode, bpe = fast_encoder_of(tokenizer), loaded(tokenizer)
    assert bpe.encode is not None
    bpe.every = 10**9
    texts = [*hard_texts(list(tokenizer.get_added_vocab())), *map(prose, range(200))]
    assert [text for text in texts if encode(text) != own(tokenizer, text)] == []
    assert bpe.compared < 3


def test_a_renderer_encodes_with_it(proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    renderer, bpe = load_renderer(tokenizer), fast_bpe.BPES[tokenizer]
    texts: list[str] = []
    fast = bpe.encode
    bpe.encode = lambda text: texts.append(text) or fast(text)
    assert renderer.prompt("a question").tokens
    assert any("a question" in text for text in texts)


def test_a_real_proof_is_made_once_a_machine(tmp_path, monkeypatch):
    tokenizer = chatml_tokenizer(*TAGS)
    first = loaded(tokenizer)
    (file,) = (tmp_path / "agentrl" / "fast_bpe").iterdir()
    assert json.loads(file.read_text())["off"] == first.off
    assert first.off in ("", "it is slower than the tokenizer")

    monkeypatch.setattr(fast_bpe, "_proved", lambda *_: pytest.fail("proved again"))
    file.write_text('{"off": ""}')
    assert loaded(chatml_tokenizer(*TAGS)).encode is not None
    file.write_text('{"off": "it encodes otherwise"}')
    assert loaded(chatml_tokenizer(*TAGS)).encode is None


def test_another_vocabulary_needs_another_proof(proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    loaded(tokenizer)
    loaded(chatml_tokenizer(*TAGS))
    assert len(proofs) == 1
    tokenizer.add_tokens(["zqnew"])
    loaded(tokenizer)
    assert len(proofs) == 2


@pytest.mark.parametrize("setting", ["off", "0"])
def test_off_reads_and_proves_nothing(monkeypatch, proofs, setting):
    tokenizer = chatml_tokenizer(*TAGS)
    monkeypatch.setenv(VARIABLE, setting)
    monkeypatch.setattr(fast_bpe, "_SMALL", 0)
    assert fast_encoder_of(tokenizer).__name__ == "fast"
    assert (tokenizer in fast_bpe.BPES, proofs) == (False, [])


@pytest.fixture
def unset(monkeypatch):
    """The variable is not set, and the test's small vocabulary counts as a large one."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(fast_bpe, "_SMALL", 0)
    monkeypatch.setattr(fast_bpe, "PATIENCE", 5_000)


def loads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agentrl-fast-bpe"]


def test_a_process_loads_it_after_much_text(unset, proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    encode, bpe = fast_encoder_of(tokenizer), loaded(tokenizer)
    texts = [prose(number) for number in range(40)]
    encoded = [encode(text) for text in texts if bpe.patience > 0]
    assert sum(map(len, texts[: len(encoded) - 1])) < fast_bpe.PATIENCE <= sum(map(len, texts[: len(encoded)]))
    for thread in loads():
        thread.join()
    assert (len(proofs), bpe.off, bpe.encode is not None) == (1, "", True)
    bpe.every = 10**9
    encoded += map(encode, texts[len(encoded) :])
    assert encoded == [own(tokenizer, text) for text in texts]
    assert fast_encoder_of(tokenizer)("x y") == own(tokenizer, "x y")
    assert len(proofs) == 1


def test_little_text_costs_nothing(unset, proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    assert fast_encoder_of(tokenizer)("x" * 4_999) == own(tokenizer, "x" * 4_999)
    assert (proofs, loads(), loaded(tokenizer).encode) == ([], [], None)


def test_the_switch_loads_at_once_what_waits_for_text(unset, monkeypatch, proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    assert loaded(tokenizer).encode is None
    monkeypatch.setenv(VARIABLE, "on")
    assert loaded(tokenizer).encode is not None


@pytest.mark.parametrize("without", ["fastokens", "a large vocabulary"])
def test_nobody_waits_for_a_load_that_does_not_pay(unset, monkeypatch, without):
    if without == "fastokens":
        monkeypatch.setattr(fast_bpe, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(fast_bpe, "_SMALL", 16_384)
    tokenizer = chatml_tokenizer(*TAGS)
    assert fast_encoder_of(tokenizer).__name__ == "fast"
    assert tokenizer not in fast_bpe.BPES


def test_a_thread_proves_only_where_the_verdict_can_be_kept(unset, monkeypatch, tmp_path, proofs, caplog):
    """Each process of a cluster would make the proof otherwise. Nobody has asked, so nobody is warned."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(fast_bpe, "PATIENCE", 1)
    tokenizer = chatml_tokenizer(*TAGS)
    assert fast_encoder_of(tokenizer)("x y") == own(tokenizer, "x y")
    for thread in loads():
        thread.join()
    assert "NotADirectoryError" in loaded(tokenizer).off
    assert (proofs, caplog.records) == ([], [])


def test_a_prover_ends_soon_after_its_parent():
    """The prover waits for a tokenizer from a pipe that this test holds."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "agentrl.render.fast_bpe"]
    program = (
        "import os, subprocess; "
        f"print(subprocess.Popen([*{command}, str(os.getpid())], stdin={reading}, stdout=subprocess.DEVNULL).pid)"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, pass_fds=(reading,))
    os.close(reading)
    prover, deadline = Path("/proc", parent.stdout.strip(), "cmdline"), time.monotonic() + 60
    while prover.exists() and b"fast_bpe" in prover.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.close(writing)
    assert time.monotonic() < deadline


def test_a_setting_that_is_neither_on_nor_off(monkeypatch):
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ConfigError, match="set it to on or off"):
        fast_encoder_of(chatml_tokenizer(*TAGS))


def test_without_the_package_the_switch_is_an_error(monkeypatch):
    monkeypatch.setattr(fast_bpe, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="fastokens is not installed"):
        fast_encoder_of(chatml_tokenizer(*TAGS))


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path, proofs, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert loaded(chatml_tokenizer(*TAGS)).encode is not None
    assert len(proofs) == 1
    assert "each process proves the fast BPE anew" in caplog.text


def test_another_process_makes_the_proof(monkeypatch, tmp_path, proofs):
    """A process that finds the lock taken waits for the verdict, or gives up."""
    monkeypatch.setattr(fast_bpe, "_LOOK_S", 0.001)
    monkeypatch.setattr(fast_bpe, "try_lock", lambda path: None)
    with monkeypatch.context() as patch:
        patch.setattr(fast_bpe, "_PATIENCE_S", 0.01)
        assert "another process holds" in loaded(chatml_tokenizer(*TAGS)).off

    def write_verdict(path: Path) -> None:
        path.with_suffix(".json").write_text('{"off": ""}')

    monkeypatch.setattr(fast_bpe, "try_lock", write_verdict)
    assert loaded(chatml_tokenizer(*TAGS)).encode is not None
    assert proofs == []


def test_a_prover_that_fails_proves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    bpe = loaded(chatml_tokenizer(*TAGS))
    assert bpe.encode is None
    assert "its proof ended with exit code 1: without output" in bpe.off
    assert not list((tmp_path / "agentrl" / "fast_bpe").iterdir())


def test_a_later_difference_among_64_texts_switches_it_off(proofs, caplog):
    tokenizer = chatml_tokenizer(*TAGS)
    encode, bpe = fast_encoder_of(tokenizer), loaded(tokenizer)
    bpe.encode = lambda text: own(tokenizer, text)[:-1]
    number = 0
    with caplog.at_level(logging.WARNING):
        while not bpe.off:
            number += 1
            tokens = encode(prose(number))
    assert 1 < number < 640
    assert tokens == own(tokenizer, prose(number))
    assert (bpe.compared, len(caplog.records)) == (1, 1)
    assert encode("x y") == own(tokenizer, "x y")


def test_the_text_decides_what_is_compared(proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    encode, bpe = fast_encoder_of(tokenizer), loaded(tokenizer)

    def compared() -> list[int]:
        return [(encode(text), bpe.compared)[1] for text in map(prose, range(640))]

    first = compared()
    assert 3 < first[-1] < 25
    assert compared() == [first[-1] + count for count in first]


def test_an_error_switches_it_off_and_the_tokenizer_encodes(proofs):
    def broken(text: str) -> list[int]:
        raise ValueError("match limit exceeded")

    tokenizer = chatml_tokenizer(*TAGS)
    encode, bpe = fast_encoder_of(tokenizer), loaded(tokenizer)
    bpe.encode = broken
    assert encode("x y") == own(tokenizer, "x y")
    assert "match limit exceeded" in bpe.off


def test_a_tokenizer_that_is_changed_encodes_itself(proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    encode, bpe = fast_encoder_of(tokenizer), loaded(tokenizer)
    tokenizer.add_tokens(["zqnew"])
    assert len(encode("zqnew")) == 1
    assert "changed" in bpe.off
    assert len(fast_encoder_of(tokenizer)("zqnew")) == 1
    assert loaded(tokenizer).off == ""
    tokenizer.split_special_tokens = True
    assert len(fast_encoder_of(tokenizer)("<|im_end|>")) > 1


def serialized(change: str = "", place: int = 0) -> str:
    """The JSON of a tokenizer, with one merge missing or last."""
    text = chatml_tokenizer(*TAGS).backend_tokenizer.to_str()
    if not change:
        return text
    right = json.loads(text)
    merges = list(right["model"]["merges"])
    merge = merges.pop(place)
    return json.dumps({**right, "model": {**right["model"], "merges": [*merges, *[merge] * (change == "late")]}})


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["missing", "late"])
def test_a_wrong_merge_fails_the_proof(change, monkeypatch):
    """Where a merge is left out or comes last, and any of 200 other texts shows it, the proof fails."""
    right, texts = serialized(), [*map(prose, range(200))]
    reference = Tokenizer.from_str(right)
    for place in range(0, 146, 12):
        mutant = READ(serialized(change, place))
        with monkeypatch.context() as patch:
            patch.setattr(fastokens, "Tokenizer", SimpleNamespace(from_json_str=lambda _, mutant=mutant: mutant))
            reason = prove(right)
        shows = [text for text in texts if mutant.encode(text).ids != reference.encode(text).ids]
        assert "otherwise" in reason or not shows, (place, shows[:1])
        assert "otherwise" in reason or change == "late"


def test_a_slower_one_is_off():
    def slowly(text: str) -> list[int]:
        return [sum(range(20_000)) and 1]

    assert fast_bpe.compared(lambda text: [1], slowly, ["a"] * 20) == "it is slower than the tokenizer"
    assert fast_bpe.compared(slowly, lambda text: [1], ["a"] * 20) == ""
    assert "at token 1 [3], not [2]" in fast_bpe.compared(lambda text: [1, 2], lambda text: [1, 3], ["a"])


def test_a_tokenizer_that_it_cannot_read():
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")), unk_token="[UNK]"
    )
    encode = fast_encoder_of(words)
    assert encode("a") == [0]
    assert "it cannot be used" in loaded(words).off


def test_a_tokenizer_that_nobody_holds_goes_with_its_bpe(proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    assert fast_encoder_of(tokenizer)("x y") == own(tokenizer, "x y")
    tokenizer_ref = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert tokenizer_ref() is None


def test_the_text_of_an_env_has_the_tokenizers_tokens(proofs):
    tokenizer = chatml_tokenizer(*TAGS)
    renderer = load_renderer(tokenizer)
    assert fast_bpe.BPES[tokenizer].encode is not None
    raw = Raw(prose(7))
    assert list(renderer.prompt(raw).tokens) == own(tokenizer, raw.text if hasattr(raw, "text") else str(raw))
