"""Checks whether the tokens of the model hold the words of messages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from agentrl._util.texts import texts_in
from agentrl.types import Message

_LONG = 64
"""Number of characters from which a text cannot match another text by chance."""
_WORD = re.compile(r"[A-Za-z0-9]+")
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
"""JSON escapes, such as a line break, if a template writes text as JSON. Their letters belong to no word."""


def first_message_not_in(messages: Sequence[Message], text: str) -> int | None:
    """The index of the first message with a word that is missing in the decoded `text`. None if no word is missing.

    Only words of Latin letters and digits are compared: quoting, trimming and a tokenizer's normalization leave such
    words unchanged.
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
