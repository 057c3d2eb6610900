"""The text of each token: joined, the pieces are the whole text, whatever a tokenizer does with single tokens."""

from __future__ import annotations

import pytest

from agentrl.view.texts import TokenTexts, load_texts

HARD = "Lima 東京 \U0001f5fc\U0001f469\u200d\U0001f680 Где?\n  two spaces, \ta tab <|im_end|> é"


@pytest.fixture(scope="module")
def texts():
    return load_texts("tiny")


def test_pieces_are_the_whole_text(texts, tokenizer):
    ids = tokenizer.encode(HARD)
    pieces = texts.pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == HARD
    assert "" in pieces, "a character of several tokens is with its first one"


def test_half_a_character_is_shown_as_broken(texts, tokenizer):
    ids = tokenizer.encode("\U0001f5fc")
    assert len(ids) > 1
    assert "\ufffd" in texts.pieces(ids[:-1])[0]


def test_a_tokenizer_that_drops_the_first_space():
    words = {1: " the", 2: " tower", 3: "s"}
    texts = TokenTexts(lambda ids: "".join(words[i] for i in ids).removeprefix(" "))
    assert texts.pieces([1, 2, 3, 2])[1:] == [" tower", "s", " tower"]


def test_search_finds_text_over_several_tokens(texts, tokenizer):
    from array import array

    from agentrl.trajectory.outline import Outline
    from agentrl.view.model import EpisodeRecord, TokenRun, TokenSequence
    from agentrl.view.payload import find_text

    ids = array("i", tokenizer.encode("The tower of Lima, and the TOWER of Oslo"))
    sequence = TokenSequence(ids, [TokenRun(0, len(ids), "prompt")], len(ids))
    places = find_text(EpisodeRecord(Outline(), "x", [sequence]), texts, "tower OF")
    assert len(places) == 2
    for _, start, stop in places:
        assert "tower of" in tokenizer.decode(list(ids[start:stop])).lower()
