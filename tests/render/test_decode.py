"""Decoding goes past the library's Python, and says what the library says."""

from __future__ import annotations

import random

from agentrl.render.template import Template
from tests.render.conftest import chatml_tokenizer


def template(tokenizer) -> Template:
    return Template.of(tokenizer, None, (), {})


def test_it_says_what_the_library_says() -> None:
    tokenizer, pick = chatml_tokenizer(), random.Random(0)
    decode = template(tokenizer).decode
    for _ in range(200):
        ids = [pick.randrange(len(tokenizer)) for _ in range(pick.randint(0, 40))]
        said = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert decode(tuple(ids)) == said


def test_a_tokenizer_with_a_decode_of_its_own_keeps_it() -> None:
    tokenizer = chatml_tokenizer()

    class Own(type(tokenizer)):
        def _decode(self, *args, **kwargs):
            return "own"

    made = template(tokenizer)
    tokenizer.__class__ = Own
    assert made.decode([1, 2]) == "own"
