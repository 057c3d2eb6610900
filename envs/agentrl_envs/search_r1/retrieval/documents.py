"""The results of a retriever, and the entries of a corpus: passages in the format of Search-R1's wiki-18."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from agentrl.errors import ConfigError
from agentrl.plain import text as whole_characters

QUERY_CHARACTERS = 20_000
"""The most characters of a query. Retrievers ignore the rest, which would only make a request too large."""
_BOM = b"\xef\xbb\xbf"
_EXAMPLE = r'{"id": "7", "contents": "\"Title\"\ntext"}'


@dataclass(frozen=True, slots=True)
class Document:
    """A passage. The first line of the contents is the title."""

    id: str
    contents: str
    score: float | None = None
    """The relevance to the query; None if the server did not send a score."""

    @property
    def title(self) -> str:
        """The first line of the contents, with the quotation marks that the corpus has around the title."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        return self.contents.partition("\n")[2]


class Retriever(Protocol):
    """Finds passages. Enter the retriever with `async with` before the first search."""

    async def search(self, query: str, topk: int) -> list[Document]:
        """The best `topk` passages, best first. An empty list means that no passage of the corpus fits.

        Raises InfraError if the search fails.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


def shown(documents: Sequence[Document]) -> str:
    """The passages as the paper shows them to the model, one a line: `Doc 1(Title: ...) ...`."""
    return "".join(
        f"Doc {number}(Title: {document.title}) {document.text}\n" for number, document in enumerate(documents, 1)
    )


def read_line(line: bytes, number: int, path: Path) -> Document | None:
    """The passage on a line, or None for a blank line. Raises ConfigError with file and line for any other line."""
    line = (line.removeprefix(_BOM) if number == 1 else line).strip()
    if not line:
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}:{number} is not JSON ({exc}); write one passage a line, {_EXAMPLE}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}:{number} is not a JSON object; write one passage a line, {_EXAMPLE}")
    return Document(_id(row, number, path), _contents(row, number, path))


def _id(row: dict[str, Any], number: int, path: Path) -> str:
    value = row.get("id")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ConfigError(f'{path}:{number} has no "id" that is a text or a whole number; write {_EXAMPLE}')
    return whole_characters(str(value))


def _contents(row: dict[str, Any], number: int, path: Path) -> str:
    text = row.get("contents")
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f'{path}:{number} has no "contents" with text; write {_EXAMPLE}')
    return whole_characters(text)


def read_corpus(path: Path) -> Iterator[tuple[bytes, Document | None]]:
    """(line, passage) for each line of a corpus; None for a blank line. Raises ConfigError for an unreadable line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield line, read_line(line, number, path)
