"""Search the text of all episodes. Each request searches for a short time, and the next request continues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentrl._util.texts import texts_in
from agentrl.errors import ConfigError
from agentrl.types import JSON
from agentrl.view.files import EpisodeFile, NotKeptError
from agentrl.view.model import EpisodeRecord
from agentrl.view.sources import Source
from agentrl.view.texts import TokenTexts

SECONDS = 0.25
"""Seconds after which a request stops reading. A request reads at least an episode."""
MOST = 500
"""The search ends at this number of matching episodes."""
_AROUND = 60
"""The most characters shown before the match, and after the match."""


@dataclass(slots=True)
class TextSearch:
    """A search in a source, with the progress so far. Growing and new files are read when the search continues."""

    sought: str
    only: str | None = None
    """The name of the only file to search; None for all files."""
    rows: list[JSON] = field(default_factory=list)
    """Matching episodes: file, number, summary, the text before the first match, the match, the text after the match,
    and the number of matches."""
    read: int = 0
    total: int = 0
    unkept: int = 0
    """The number of episodes without stored tokens, which cannot be searched."""
    failed: str = ""
    """The name of the first unreadable file, and the error; empty if all files are readable."""
    _next: dict[str, int] = field(default_factory=dict)

    def advance(self, source: Source, texts: TokenTexts | None, seconds: float = SECONDS) -> None:
        """Search further episodes for `seconds`."""
        end = time.monotonic() + seconds
        unread = list(self._unread(source))
        for name, file, total in unread:
            for number in range(self._next.get(name, 0), total):
                if len(self.rows) >= MOST:
                    return
                self._next[name] = number + 1
                self.read += 1
                self._look(name, number, file, texts)
                if time.monotonic() > end:
                    return

    def answer(self, begin: int) -> JSON:
        """The matching episodes from row `begin` on, and the progress of the search."""
        return {
            "rows": self.rows[begin:],
            "read": self.read,
            "total": self.total,
            "unkept": self.unkept,
            "failed": self.failed,
            "full": len(self.rows) >= MOST,
        }

    def _unread(self, source: Source) -> Iterator[tuple[str, EpisodeFile, int]]:
        """The files with episodes to read, the newest first."""
        self.total = 0
        for name in [self.only] if self.only is not None else source.listing()[::-1]:
            try:
                file = source.file(name)
                total = file.refresh()
            except ConfigError as exc:
                self.failed = self.failed or str(exc)
                continue
            self.total += total
            if self._next.get(name, 0) < total:
                yield name, file, total

    def _look(self, name: str, number: int, file: EpisodeFile, texts: TokenTexts | None) -> None:
        try:
            episode = file.episode(number)
        except NotKeptError:
            self.unkept += 1
            return
        except ConfigError as exc:
            self.failed = self.failed or str(exc)
            return
        if place := _found(text_of(episode, texts), self.sought):
            self.rows.append([name, number, episode.outline.to_json(), *place])


def text_of(episode: EpisodeRecord, texts: TokenTexts | None) -> str:
    """The whole text of an episode: the tokens as text, or the messages if the tokenizer is missing here."""
    if texts is not None and episode.sequences:
        return "\n".join(texts.decode(sequence.ids.tolist()) for sequence in episode.sequences)
    texts_of_episode = [text.text for text in episode.texts]
    return "\n".join(texts_of_episode or ["".join(texts_in(message.get("content"))) for message in episode.messages])


def _found(text: str, sought: str) -> list[JSON] | None:
    """The first match of `sought` with the text around it, and the number of matches. Case is ignored."""
    folded, folded_sought = text.casefold(), sought.casefold()
    start = folded.find(folded_sought)
    if start < 0:
        return None
    if len(folded) != len(text):  # folding changed lengths, as of a sharp s: show the folded text
        text = folded
    stop = start + len(folded_sought)
    return [
        text[max(0, start - _AROUND) : start],
        text[start:stop],
        text[stop : stop + _AROUND],
        folded.count(folded_sought),
    ]
