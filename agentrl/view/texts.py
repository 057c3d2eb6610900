"""The text of each token, for the web page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Decode: TypeAlias = Callable[[Sequence[int]], str]

_BROKEN = "\ufffd"
_LONGEST = 8
"""The most tokens that a single character may take."""


class TokenTexts:
    """Decodes tokens into a text for each token. These texts, joined, are the whole text."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._table: dict[int, str] = {}
        self._after: dict[int, str] = {}
        self._characters: dict[tuple[int, ...], str] = {}

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A text for each token. If a character takes several tokens, the first token has the character, and the others
        have ""."""
        texts = self._joined(ids, self._table, self._alone)
        if "".join(texts) == self.decode(list(ids)):
            return texts
        return self._joined(ids, self._after, self._behind)  # this tokenizer drops spaces at the beginning

    def _alone(self, ids: Sequence[int]) -> str:
        return self.decode(list(ids))

    def _behind(self, ids: Sequence[int]) -> str:
        """The text after the previous token."""
        first = self.decode([ids[0]])
        return self.decode([ids[0], *ids])[len(first) :]

    def _joined(self, ids: Sequence[int], table: dict[int, str], decode: Callable[[Sequence[int]], str]) -> list[str]:
        for token in set(ids) - table.keys():
            table[token] = decode([token])
        texts = [table[token] for token in ids]
        index = 0
        while index < len(texts):
            if _BROKEN in texts[index]:
                index = self._join(ids, texts, index, decode)
            else:
                index += 1
        return texts

    def _join(self, ids: Sequence[int], texts: list[str], index: int, decode: Callable[[Sequence[int]], str]) -> int:
        """Join the tokens of the character that begins at `index`. Returns the index of the next character's first
        token."""
        for stop in range(index + 2, min(index + _LONGEST, len(ids)) + 1):
            if (text := self._characters.get(several := tuple(ids[index:stop]))) is None:
                text = self._characters[several] = decode(several)
            if _BROKEN not in text:
                texts[index:stop] = [text, *[""] * (stop - index - 1)]
                return stop
        return index + 1


def load_texts(model: str) -> TokenTexts:
    """The decoder of a model's tokens. Raises ConfigError for a model without a tokenizer."""
    file = Path(model) / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        raw = Tokenizer.from_file(str(file))
        return TokenTexts(lambda ids: str(raw.decode(list(ids), skip_special_tokens=False)))
    from agentrl.models import load_tokenizer

    tokenizer: Any = load_tokenizer(model)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return TokenTexts(lambda ids: str(backend.decode(list(ids), skip_special_tokens=False)))
    return TokenTexts(lambda ids: str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)))


def numbered(ids: Sequence[int]) -> list[str]:
    """Token ids as texts, for a model whose tokenizer is missing."""
    return [f"\u27e8{token}\u27e9" for token in ids]
