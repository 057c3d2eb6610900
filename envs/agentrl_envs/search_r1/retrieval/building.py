"""Find the index of a corpus, check whether the index is up to date, and build it: once, and whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agentrl._util.file_lock import try_lock, unlock
from agentrl.errors import ConfigError
from agentrl_envs.search_r1.retrieval.documents import Document, read_corpus
from agentrl_envs.search_r1.retrieval.index import FORMAT, TantivyIndex, require_tantivy, write_index

Progress = Callable[[int, int], None]
"""A function that is called with the bytes of the corpus read so far, and the size of the corpus in bytes."""
_ABOUT = "corpus.json"
_BUILDING = "building"
_ONE_THREAD_BYTES = 200 << 20
"""A corpus with fewer bytes is indexed by a single thread. So documents keep their order, and passages with equal
scores rank alike in each build."""
_MOST_THREADS = 4
_CHECKED_EVERY = 1024


@dataclass(frozen=True, slots=True)
class _Corpus:
    """Describes the corpus of an index. If size and times are equal, the content is equal; otherwise the digest
    decides."""

    format: int
    size: int
    changed_ns: tuple[int, int]
    digest: str = ""
    documents: int = 0

    @classmethod
    def of(cls, path: Path) -> _Corpus:
        stat = path.stat()
        return cls(FORMAT, stat.st_size, (stat.st_mtime_ns, stat.st_ctime_ns))

    @classmethod
    def read(cls, folder: Path) -> _Corpus | None:
        try:
            about = json.loads((folder / _ABOUT).read_bytes())
            return cls(**{**about, "changed_ns": tuple(about["changed_ns"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        new = folder / f"{_ABOUT}.new"
        new.write_text(json.dumps(asdict(self)) + "\n")
        os.replace(new, folder / _ABOUT)


async def open_in_thread(corpus: Path, progress: Progress | None = None) -> TantivyIndex:
    """`open_index` in a thread. On cancellation the thread ends, too, and removes the unfinished index."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(open_index, corpus, progress, stop)
    finally:
        stop.set()


def open_index(corpus: Path, progress: Progress | None = None, stop: threading.Event | None = None) -> TantivyIndex:
    """The index of a corpus, built unless an index fits the content.

    The index lies next to the corpus in `NAME.bm25`, or in the user's cache if that folder is read-only. Other
    processes wait for the build. Raises ConfigError without tantivy, and for a corpus with an unreadable line; OSError
    if the disk is full.
    """
    require_tantivy()
    if not corpus.is_file():
        raise ConfigError(f"there is no corpus {corpus}; name a JSONL file with one passage a line")
    homes = _homes(corpus)
    for home in homes:
        if index := _find(home, corpus):
            return index
    home = next((home for home in homes if _may_write(home)), homes[-1])
    return _build(corpus, home, progress or (lambda done, size: None), stop or threading.Event())


def _homes(corpus: Path) -> list[Path]:
    beside = corpus.with_name(f"{corpus.name}.bm25")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(os.fsencode(corpus.absolute())).hexdigest()[:16]
    return [beside, cache / "agentrl" / "bm25" / f"{corpus.stem}-{place}"]


def _may_write(home: Path) -> bool:
    """Whether this process should write to a folder. Even root leaves a folder unchanged that its owner made
    read-only."""
    folder = home if home.is_dir() else home.parent
    return folder.is_dir() and os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def _find(home: Path, corpus: Path) -> TantivyIndex | None:
    now = _Corpus.of(corpus)
    for about in sorted(home.glob(f"*/{_ABOUT}")):
        folder, entry = about.parent, _Corpus.read(about.parent)
        if folder.name == _BUILDING or entry is None or (entry.format, entry.size) != (FORMAT, now.size):
            continue
        if entry.changed_ns != now.changed_ns:
            if _digest(corpus) != entry.digest:
                continue
            with contextlib.suppress(OSError):  # a folder that is read-only: the digest is taken each time
                replace(entry, changed_ns=now.changed_ns).write(folder)
        with contextlib.suppress(OSError, ValueError):  # damaged, or of another tantivy: it is made anew
            index = TantivyIndex(folder)
            if index.documents == entry.documents:
                return index
    return None


def _digest(corpus: Path) -> str:
    with corpus.open("rb") as file:
        return hashlib.file_digest(file, _hash).hexdigest()


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _build(corpus: Path, home: Path, progress: Progress, stop: threading.Event) -> TantivyIndex:
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home, stop):
        if index := _find(home, corpus):  # another process has made it meanwhile
            return index
        building = home / _BUILDING
        shutil.rmtree(building, ignore_errors=True)  # of a process that was killed
        building.mkdir()
        try:
            entry = _write(corpus, building, progress, stop)
            whole = home / entry.digest
            shutil.rmtree(whole, ignore_errors=True)
            building.rename(whole)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        for old in home.iterdir():
            if old.is_dir() and old != whole:
                shutil.rmtree(old, ignore_errors=True)  # who has it open keeps it: it is mapped
        return TantivyIndex(whole)


def _write(corpus: Path, folder: Path, progress: Progress, stop: threading.Event) -> _Corpus:
    reading = _CorpusReader(corpus, progress, stop)
    before = _Corpus.of(corpus)
    threads = 1 if before.size < _ONE_THREAD_BYTES else min(_MOST_THREADS, os.cpu_count() or 1)
    documents = write_index(folder, reading.documents(before.size), threads)
    if _Corpus.of(corpus) != before:
        raise ConfigError(f"{corpus} was changed while it was indexed; run the command again")
    entry = replace(before, digest=reading.hash.hexdigest(), documents=documents)
    entry.write(folder)
    return entry


class _CorpusReader:
    """Reads a corpus once: yields documents, computes the digest, and notices repeated ids."""

    def __init__(self, corpus: Path, progress: Progress, stop: threading.Event) -> None:
        self._corpus, self._progress, self._stop = corpus, progress, stop
        self.hash = _hash()
        self._ids = array("q")
        """A hash of each id: 8 bytes, where the ids of 20 million passages would take gigabytes."""

    def documents(self, size: int) -> Iterator[Document]:
        done = 0
        for number, (line, document) in enumerate(read_corpus(self._corpus)):
            self.hash.update(line)
            done += len(line)
            if number % _CHECKED_EVERY == 0:
                self._look_up(done, size)
            if document is not None:
                self._ids.append(hash(document.id))
                yield document
        if not self._ids:
            raise ConfigError(f"{self._corpus} holds no passage")
        self._refuse_doubles()
        self._look_up(size, size)

    def _look_up(self, done: int, size: int) -> None:
        if self._stop.is_set():
            raise InterruptedError("indexing was stopped")
        self._progress(done, size)

    def _refuse_doubles(self) -> None:
        import numpy as np

        hashes = np.sort(np.frombuffer(self._ids, dtype=np.int64))
        twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not twice:
            return
        lines: dict[str, int] = {}
        for number, (_, document) in enumerate(read_corpus(self._corpus), 1):
            if document is None or hash(document.id) not in twice:
                continue
            if first := lines.get(document.id):
                raise ConfigError(
                    f"{self._corpus}:{number} has the id {document.id!r} of line {first}; give each passage its own"
                )
            lines[document.id] = number


@contextmanager
def _alone(home: Path, stop: threading.Event) -> Iterator[None]:
    """Hold a lock within `with`, so that a single process builds in a folder. A killed process frees its lock."""
    file = home / "lock"
    while (descriptor := try_lock(file)) is None:
        if stop.wait(0.1):
            raise InterruptedError("indexing was stopped")
    try:
        yield
    finally:
        unlock(file, descriptor)
