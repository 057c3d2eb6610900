"""The fast BPE: the tokenizer's tokens, and off at the first text for which it has others."""

from __future__ import annotations

import gc
import json
import logging
import random
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from agentrl.errors import ConfigError, TemplateError
from agentrl.monitor import EpisodeMetrics
from agentrl.render import fast_bpe, load_renderer
from agentrl.render.fast_bpe import VARIABLE, FastBpe, fast_encoder_of
from agentrl.render.hard_texts import hard_texts
from agentrl.render.prove.proof import proof_of
from agentrl.render.template import Template
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation, Raw
from tests.render.conftest import TAGS, TEXT, chatml_tokenizer, llama_tokenizer, sentencepiece_tokenizer
from tests.render.markers import template_files, tokenizer_of

fastokens = pytest.importorskip("fastokens")
MAKE = {"chatml": lambda: chatml_tokenizer(*TAGS), "llama": llama_tokenizer}


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "on")
    kept = dict(fast_bpe.LOADED)
    yield
    fast_bpe.LOADED.clear()
    fast_bpe.LOADED.update(kept)


HELD: list[Any] = []
"""Tokenizers of BPEs that a test keeps: a BPE does not hold its own."""


def loaded(tokenizer: Any) -> FastBpe:
    HELD.append(tokenizer)
    fast_encoder_of(tokenizer)
    return fast_bpe.LOADED[tokenizer]


def prose(seed: int) -> str:
    """A text that no list of hard texts has."""
    pick = random.Random(seed)
    words = ["".join(pick.choices("etaoinshrdluE 'é晴0.\n<|", k=pick.randrange(1, 12))) for _ in range(80)]
    return " ".join(words)


@pytest.mark.thorough
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_it_gives_the_tokens_of_the_tokenizer(make: Callable[[], Any]) -> None:
    tokenizer = make()
    bpe = loaded(tokenizer)
    assert bpe.off == ""
    bpe.every = 10**9
    texts = [*hard_texts(tokenizer), *map(prose, range(200))]
    assert [text for text in texts if bpe.encode(text) != tokenizer.encode(text, add_special_tokens=False)] == []


def test_it_is_used_where_a_renderer_is_loaded_and_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    assert load_renderer(tokenizer).turns.template.encoder == loaded(tokenizer).encode
    for said in ("", "off", "0"):
        monkeypatch.setenv(VARIABLE, said)
        assert fast_encoder_of(tokenizer).__name__ == "fast"
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ConfigError, match="set it to on or off"):
        fast_encoder_of(tokenizer)


@pytest.mark.thorough
@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_certification_gets_the_same_tokens_in_every_probe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(path)
    bpe = loaded(tokenizer)
    assert bpe.off == ""
    monkeypatch.setattr(bpe, "every", 1)
    before = fast_bpe.comparisons.texts
    fast = certificate(tokenizer, "fast")
    assert fast_bpe.comparisons.texts - before > 20
    assert bpe.off == ""
    monkeypatch.setenv(VARIABLE, "off")
    assert fast == certificate(tokenizer, "own")


def certificate(tokenizer: Any, name: str) -> Any:
    try:
        found = proof_of(Template.of(tokenizer, None, (), {}), f"{id(tokenizer)} {name}").certificate
        return replace(found, milliseconds=0)
    except TemplateError as exc:
        return str(exc)


READ = fastokens.Tokenizer.from_json_str


def reading(monkeypatch: pytest.MonkeyPatch, merges: str) -> None:
    """The BPE reads this JSON, whatever it is given."""
    monkeypatch.setattr(fastokens, "Tokenizer", SimpleNamespace(from_json_str=lambda _: READ(merges)))


def wrong(change: str, place: int) -> str:
    right = json.loads(chatml_tokenizer(*TAGS).backend_tokenizer.to_str())
    merges = list(right["model"]["merges"])
    merge = merges.pop(place)
    if change == "late":
        merges.append(merge)
    return json.dumps({**right, "model": {**right["model"], "merges": merges}})


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["missing", "late"])
def test_a_wrong_merge_is_found_at_load(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a merge is left out or comes last, and any of 200 other texts shows it, the load has shown it."""
    texts = [*map(prose, range(200)), *TEXT]
    for place in range(0, 146, 12):
        merges = wrong(change, place)
        reading(monkeypatch, merges)
        bpe, mutant = loaded(chatml_tokenizer(*TAGS)), READ(merges)
        shows = [text for text in texts if mutant.encode(text).ids != bpe.reference(text)]
        assert bpe.off or not shows, (place, shows[0])
        assert bpe.off or change == "late"


def at_work(tokenizer: Any, other: Callable[[str], list[int]]) -> FastBpe:
    """A BPE that was in order when it was loaded, and now encodes otherwise."""
    bpe = loaded(tokenizer)
    assert bpe.off == ""
    bpe.other = other
    return bpe


def test_a_later_difference_is_found_among_64_texts_counted_and_switches_it_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    renderer = load_renderer(tokenizer)
    bpe = at_work(tokenizer, lambda text: tokenizer.encode(text, add_special_tokens=False)[:-1])
    trajectory, number = Trajectory(), 0
    with caplog.at_level(logging.WARNING):
        trajectory.append_prompt(renderer.prompt("question"))
        while not bpe.off:
            number += 1
            trajectory.append_model(Generation([5, 5], [-1.0, -1.0], "length"))
            action = renderer.parse([5, 5], "length")
            trajectory.append_action(action)
            trajectory.append_observation(renderer.text(Raw(prose(number)), action))
    assert 1 < number < 640
    counts = EpisodeMetrics.of(trajectory)
    assert (counts.encodes_checked, counts.encodes_different) == (1, 1)
    assert len(caplog.records) == 1
    assert "the fast BPE is off" in caplog.text
    right = tokenizer.encode(prose(number), add_special_tokens=False)
    assert list(trajectory.tokens[-len(right) :]) == right
    assert bpe.encode("x y") == tokenizer.encode("x y", add_special_tokens=False)
    assert fast_encoder_of(tokenizer) != bpe.encode


@pytest.mark.thorough
@pytest.mark.parametrize("every", [1, 64])
def test_the_text_decides_what_is_compared(every: int) -> None:
    bpe = loaded(chatml_tokenizer(*TAGS))
    bpe.every = every

    def compared() -> list[bool]:
        return [bool(fast(text)) for text in map(prose, range(640))]

    def fast(text: str) -> int:
        before = fast_bpe.comparisons.texts
        bpe.encode(text)
        return fast_bpe.comparisons.texts - before

    first = compared()
    assert first == compared()
    assert sum(first) == 640 if every == 1 else 3 < sum(first) < 25


def test_an_error_switches_it_off_and_the_tokenizer_encodes() -> None:
    def broken(text: str) -> list[int]:
        raise ValueError("match limit exceeded")

    tokenizer = chatml_tokenizer(*TAGS)
    bpe = at_work(tokenizer, broken)
    assert bpe.encode("x y") == tokenizer.encode("x y", add_special_tokens=False)
    assert "match limit exceeded" in bpe.off


@pytest.mark.thorough
def test_a_tokenizer_that_is_changed_encodes_itself() -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    encode = fast_encoder_of(tokenizer)
    tokenizer.add_tokens(["zqnew"])
    assert len(encode("zqnew")) == 1
    assert "changed" in fast_bpe.LOADED[tokenizer].off
    assert len(fast_encoder_of(tokenizer)("zqnew")) == 1
    assert loaded(tokenizer).off == ""
    tokenizer.split_special_tokens = True
    assert len(fast_encoder_of(tokenizer)("<|im_end|>")) > 1


def test_a_tokenizer_that_it_cannot_read_encodes_itself(caplog: pytest.LogCaptureFixture) -> None:
    made = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    with caplog.at_level(logging.WARNING):
        encode = fast_encoder_of(tokenizer)
    assert encode("a") == [0]
    assert "it cannot be used" in caplog.text


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'agentrl-sdk[fast]'")):
        fast_encoder_of(chatml_tokenizer(*TAGS))


@pytest.mark.thorough
def test_a_tokenizer_with_spaces_for_words_is_compared_too() -> None:
    tokenizer = sentencepiece_tokenizer()
    bpe, encode = loaded(tokenizer), fast_encoder_of(tokenizer)
    for text in hard_texts(tokenizer):
        assert encode(text) == tokenizer.encode(text, add_special_tokens=False), (bpe.off, text)


def test_a_tokenizer_that_nobody_holds_goes_with_its_bpe() -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    assert fast_bpe.fast_encoder_of(tokenizer)("x y") == tokenizer.encode("x y", add_special_tokens=False)
    held = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert held() is None
