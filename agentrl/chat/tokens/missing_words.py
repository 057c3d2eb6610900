"""Whether what somebody said stands in the tokens that the model reads."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from agentrl.types import Message

_LONG = 64
"""Characters of a text that stands nowhere by chance."""
_WORD = re.compile(r"[A-Za-z0-9]+")
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
"""What stands for a line break, say, where a template writes text as JSON: its letter belongs to no word."""


def lost(messages: Sequence[Message], text: str) -> int | None:
    """The place of the first message of which a word is not in the decoded `text`.

    Words of Latin letters and digits are compared: quoting, trimming and a tokenizer's normal form leave them alone.
    """
    words: set[str] | None = None
    for at, message in enumerate(messages):
        content = message.get("content") or ""
        if len(content) >= _LONG and content.strip() in text:
            continue
        words = _words(text) if words is None else words
        if _words(content) - words:
            return at
    return None


def _words(text: str) -> set[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return set(_WORD.findall(_ESCAPE.sub(" ", text) if "\\" in text else text))
