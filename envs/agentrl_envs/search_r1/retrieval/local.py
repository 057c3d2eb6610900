"""A corpus as a retriever in this process, with no server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from agentrl.errors import ConfigError
from agentrl_envs.search_r1.retrieval.documents import Document


class LocalRetriever:
    """Searches a corpus by BM25. Entering it opens the index, and makes it first if there is none."""

    def __init__(self, corpus: Path) -> None:
        self._corpus = corpus

    async def __aenter__(self) -> Self:
        raise ConfigError(f"{self._corpus}: no index yet")

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.sleep(0)

    async def search(self, query: str, topk: int) -> list[Document]:
        """The best `topk` passages, best first. An empty list where no word of the query is in the corpus."""
        raise ConfigError(f"{self._corpus}: no index yet")
