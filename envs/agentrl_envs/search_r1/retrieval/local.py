"""Search a corpus in this process, without a server."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from agentrl.errors import ConfigError, InfraError
from agentrl_envs.search_r1.retrieval.building import open_in_thread
from agentrl_envs.search_r1.retrieval.documents import Document
from agentrl_envs.search_r1.retrieval.index import TantivyIndex

_log = logging.getLogger("agentrl")


class LocalRetriever:
    """Searches a corpus by BM25. Entering the retriever opens the index, and builds a missing index first."""

    def __init__(self, corpus: Path) -> None:
        self._corpus = corpus
        self._index: TantivyIndex | None = None
        self._threads: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> Self:
        """Raises ConfigError for an unreadable corpus, and InfraError if the disk has no room for the index."""
        _log.info("opening the index of %s; making it takes a minute for half a million passages", self._corpus)
        try:
            self._index = await open_in_thread(self._corpus)
        except PermissionError as exc:
            raise ConfigError(f"{exc.filename}: {exc.strerror}; make it readable") from exc
        except OSError as exc:
            raise InfraError(f"the index of {self._corpus} could not be made: {exc}") from exc
        self._threads = ThreadPoolExecutor(os.cpu_count(), "agentrl-search")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        self._index = self._threads = None

    async def search(self, query: str, topk: int) -> list[Document]:
        """The best `topk` passages, best first. An empty list if no word of the query is in the corpus."""
        if self._index is None:
            raise ConfigError(f"the retriever over {self._corpus} is not open; search within `async with`")
        if topk < 1:
            raise ConfigError(f"topk is {topk}; ask for at least one passage")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._index.search, query, topk)
