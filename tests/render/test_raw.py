"""The tokenizer in Rust called directly: the same tokens, and never where another program changed its settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.render.raw import encoder_of
from tests.render.conftest import TAGS, chatml_tokenizer, llama_tokenizer, sentencepiece_tokenizer

TEXT = "  Paris\n\n<|im_start|>user\n  naïve 晴れ <tool_call></s>\n"


@pytest.mark.parametrize("make", [lambda: chatml_tokenizer(*TAGS), llama_tokenizer, sentencepiece_tokenizer])
def test_it_gives_the_tokens_of_the_library(make: Any) -> None:
    tokenizer = make()
    encode = encoder_of(tokenizer)
    assert encode.__name__ == "fast"
    assert encode(TEXT) == tokenizer.encode(TEXT, add_special_tokens=False)


def test_settings_of_another_user_of_the_tokenizer_change_nothing() -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    encode, expected = encoder_of(tokenizer), tokenizer.encode(TEXT, add_special_tokens=False)
    tokenizer(TEXT, truncation=True, max_length=2)
    assert tokenizer.backend_tokenizer.truncation is not None
    assert encode(TEXT) == expected
    tokenizer.backend_tokenizer.enable_padding(length=99)
    assert encode(TEXT) == expected
    tokenizer.backend_tokenizer.encode_special_tokens = True
    assert encode(TEXT) == expected


def test_a_tokenizer_with_an_encode_of_its_own_is_asked_itself() -> None:
    tokenizer = chatml_tokenizer(*TAGS)

    class Own(type(tokenizer)):  # type: ignore[misc]
        def encode(self, text: str, **given: Any) -> list[int]:
            return [1, *super().encode(text, **given)]

    tokenizer.__class__ = Own
    assert encoder_of(tokenizer)("x")[0] == 1


def test_a_tokenizer_that_encodes_otherwise_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    backend = tokenizer.backend_tokenizer

    def wrong(texts: list[str], add_special_tokens: bool) -> list[Any]:
        return [SimpleNamespace(ids=backend.encode(text, add_special_tokens=False).ids[:5]) for text in texts]

    spy = SimpleNamespace(
        truncation=None, padding=None, encode_special_tokens=False, encode_batch_fast=wrong,
        encode_batch=backend.encode_batch,
    )  # fmt: skip
    monkeypatch.setattr(type(tokenizer), "backend_tokenizer", property(lambda _: spy))
    assert encoder_of(tokenizer).__name__ == "slowly"


def test_an_added_token_is_known_after_it_is_added() -> None:
    tokenizer = chatml_tokenizer(*TAGS)
    encode = encoder_of(tokenizer)
    tokenizer.add_tokens(["zqnew"])
    assert len(encode("zqnew")) == 1
