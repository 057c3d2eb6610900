"""Check whether the decoded tokens of a prompt hold all words of the messages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from agentrl._util.texts import texts_in
from agentrl.types import Message

_LONG = 64
"""Minimum number of characters of a text that cannot match by chance."""
_WORD = re.compile(r"[A-Za-z0-9]+")
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
"""JSON escapes, such as that of a line break, for templates that write text as JSON. The letters of an escape
belong to no word."""


def first_message_not_in(messages: Sequence[Message], text: str) -> int | None:
    """The index of the first message with a word that is missing in the decoded `text`. None if no word is missing.

    Only words of Latin letters and digits are compared, because quoting, trimming and a tokenizer's normalization leave
    such words unchanged.
    """
    words: set[str] | None = None
    for index, message in enumerate(messages):
        content = "\n".join(texts_in(message.get("content") or ""))
        if len(content) >= _LONG and content.strip() in text:
            continue
        words = _words(text) if words is None else words
        if _words(content) - words:
            return index
    return None


def _words(text: str) -> set[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return set(_WORD.findall(_ESCAPE.sub(" ", text) if "\\" in text else text))
