"""A renderer of one token a character: enough to read scripts and answers by eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

END = ord("$")


class CharRenderer:
    """Encodes a message as its characters and the stop token "$"."""

    stop_token_ids = frozenset({END})

    def encode(self, message: Mapping[str, Any], prompt: Sequence[int] = ()) -> list[int]:
        return [ord(character) for character in message["content"]] + [END]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.fixture
def chars() -> CharRenderer:
    return CharRenderer()
