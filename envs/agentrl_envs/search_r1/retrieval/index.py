"""BM25 over a corpus, by tantivy: the index lies in a folder and is memory-mapped."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.plain import text as whole_characters
from agentrl_envs.search_r1.retrieval.documents import QUERY_CHARACTERS, Document

if TYPE_CHECKING:
    import tantivy

FORMAT = 1
"""The version of the fields and of the word rules below. An index of a different version is rebuilt."""
_CONTENTS, _ID = "contents", "id"
_WORDS = "words"
_LONGEST_WORD = 40
_HEAP_BYTES = 256 << 20
"""Bytes of memory of an indexing thread. A corpus that fits into this memory gets a single segment, in the order of the
corpus."""
_NEARLY_FULL_BYTES = 64 << 20
_MOST_WORDS = 512
"""The most different words of a query that are searched, so that no query is slow."""


class TantivyIndex:
    """A complete index. Any number of threads may search at once: tantivy releases Python's global lock."""

    def __init__(self, folder: Path) -> None:
        """Open the index in a folder. Raises ValueError or OSError if the folder has no complete index."""
        import tantivy

        self.folder = folder
        self._words = _analyzer()
        index = tantivy.Index.open(str(folder))
        index.register_tokenizer(_WORDS, self._words)
        index.config_reader(reload_policy="manual")  # it never changes: no thread has to watch the folder
        index.reload()
        self._schema, self._searcher = index.schema, index.searcher()
        self.documents: int = self._searcher.num_docs
        self._should, self._query = tantivy.Occur.Should, tantivy.Query

    def search(self, query: str, topk: int) -> list[Document]:
        """The best `topk` passages, best first. An empty list if no word of the query is in the corpus.

        The query is plain words without syntax. Words such as "the" do not count, and each word counts once.
        """
        analyzed = self._words.analyze(whole_characters(query[:QUERY_CHARACTERS]))
        words = list(dict.fromkeys(analyzed))[:_MOST_WORDS]
        if not words:
            return []
        terms = [(self._should, self._query.term_query(self._schema, _CONTENTS, word, "freq")) for word in words]
        # Without the count of all hits, tantivy passes over what cannot be among the best.
        result = self._searcher.search(self._query.boolean_query(terms), min(topk, self.documents), count=False)
        return [self._document(address, score) for score, address in result.hits]

    def _document(self, address: tantivy.DocAddress, score: float) -> Document:
        fields = self._searcher.doc(address).to_dict()
        return Document(fields[_ID][0], fields[_CONTENTS][0], score)


def write_index(folder: Path, documents: Iterable[Document], threads: int) -> int:
    """Index the documents into an empty folder, and return their number.

    Raises OSError if the disk is full, and ConfigError if tantivy cannot write for another reason.
    """
    import tantivy

    fields = tantivy.SchemaBuilder()
    fields.add_text_field(_CONTENTS, stored=True, tokenizer_name=_WORDS, index_option="freq")
    fields.add_text_field(_ID, stored=True, tokenizer_name="raw", index_option="basic")
    with _errors_of_writing(folder):
        index = tantivy.Index(fields.build(), path=str(folder))
        index.register_tokenizer(_WORDS, _analyzer())
        writer = index.writer(_HEAP_BYTES * threads, threads)
    count = 0
    try:
        for document in documents:
            with _errors_of_writing(folder):
                writer.add_document(tantivy.Document(**{_CONTENTS: document.contents, _ID: document.id}))
            count += 1
        with _errors_of_writing(folder):
            writer.commit()
            writer.wait_merging_threads()
    except BaseException:
        with suppress(ValueError, RuntimeError):
            writer.wait_merging_threads()  # its threads end, and write no more into a folder that is removed
        raise
    return count


@contextmanager
def _errors_of_writing(folder: Path) -> Iterator[None]:
    """tantivy reports only the death of a thread; the disk shows the reason."""
    try:
        yield
    except ValueError as exc:
        free = shutil.disk_usage(folder).free
        if free < _NEARLY_FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from exc
        raise ConfigError(f"no index could be written into {folder}, with {free >> 20} MiB free there: {exc}") from exc


def require_tantivy() -> None:
    """Raises ConfigError if tantivy is not installed."""
    if importlib.util.find_spec("tantivy") is None:
        raise ConfigError("searching a corpus needs tantivy: pip install 'agentrl-envs[search]'")


def _analyzer() -> tantivy.TextAnalyzer:
    """Splits passages and queries into words: letters and digits, in lower case, without accents, as English stems."""
    import tantivy

    steps = [
        tantivy.Filter.remove_long(_LONGEST_WORD),
        tantivy.Filter.lowercase(),
        tantivy.Filter.stopword("english"),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stemmer("english"),
    ]
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in steps:
        builder = builder.filter(step)
    return builder.build()
