"""A retriever in memory, and one that is down."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import InfraError
from agentrl_envs.search_r1.retrieval import Document

FRANCE = Document("0", '"France"\nFrance is a country in Europe. Its capital is Paris.')
LYON = Document("1", '"Lyon"\nLyon is a city in France.')


class Library:
    """Finds the documents that share a word with the query. It keeps the queries, and may fail or wait."""

    def __init__(self, *documents, error=None):
        self.documents, self.error, self.asked, self.pause = documents, error, [], None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        pass

    async def search(self, query, topk):
        self.asked.append((query, topk))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        words = set(query.lower().split())
        return [one for one in self.documents if words & set(one.contents.lower().split())][:topk]


@pytest.fixture
def library():
    return Library(FRANCE, LYON)


@pytest.fixture
def dead():
    return Library(error=InfraError("http://127.0.0.1:8000/retrieve: connection refused"))
