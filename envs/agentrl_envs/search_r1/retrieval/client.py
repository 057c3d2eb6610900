"""A client of a retriever with Search-R1's HTTP contract, for all episodes of an event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from agentrl._util.backoff import pause
from agentrl._util.http import HttpService
from agentrl.errors import ConfigError, InfraError, one_line
from agentrl.plain import text as whole_characters
from agentrl.types import JSON
from agentrl_envs.search_r1.retrieval.documents import QUERY_CHARACTERS, Document, Retriever

_LINGER_S = 0.002
"""Seconds that the first query of a request waits for more queries, while the server works on other requests."""
_MOST_REQUESTS = 256
_LONGEST_WAIT_S = 2.0
"""The most seconds between two attempts, so that a restarted server is used soon."""


def is_url(where: str) -> bool:
    return where.startswith(("http://", "https://"))


def open_retriever(where: str, *, timeout: float = 30.0) -> Retriever:
    """The retriever at a URL, such as http://127.0.0.1:8000, or over a corpus, a JSONL file, in this process.

    `timeout` is the deadline of a search in seconds, retries included. The index of a corpus is built on first use and
    stored. Raises ConfigError for a source that is neither a URL nor a file.
    """
    if is_url(where):
        return HTTPRetriever(where, timeout=timeout)
    if not Path(where).is_file():
        raise ConfigError(f"the retriever {where!r} is neither a URL (http://host:8000/retrieve) nor a corpus file")
    from agentrl_envs.search_r1.retrieval.local import LocalRetriever  # needs tantivy

    return LocalRetriever(Path(where))


class WrongAnswerError(InfraError):
    """The server's response is not the response of a retriever. The request is not repeated."""


@dataclass(slots=True)
class _PendingQuery:
    query: str
    future: asyncio.Future[list[Document]]
    error: str = "no answer yet"


class HTTPRetriever:
    """Searches with `POST /retrieve`. Simultaneous queries share a request.

    Failed requests are retried until the deadline. A failed request is split, so that a query which the server cannot
    answer costs the other queries no time.
    """

    def __init__(self, url: str, *, timeout: float = 30.0, batch: int = 64) -> None:
        """`timeout` is the deadline of a search in seconds; `batch` is the most queries in a request."""
        self.url, self.timeout, self.batch = _endpoint(url), timeout, batch
        self._service = HttpService(url=self.url, seconds=timeout, retries=0, concurrency=_MOST_REQUESTS, trip=0)
        self._waiting: dict[int, list[_PendingQuery]] = {}
        self._sending: dict[asyncio.Task[None], list[_PendingQuery]] = {}
        self._under_way = 0
        self._connections = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Share open connections between searches. Without this, each search opens a connection."""
        await self._connections.enter_async_context(self._service.kept_open())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the client. Waiting searches raise InfraError."""
        waiting = [pending for queue in (*self._waiting.values(), *self._sending.values()) for pending in queue]
        self._waiting.clear()
        for pending in waiting:
            _fail(pending, InfraError(f"the client of {self.url} was closed during the search"))
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._connections.aclose()

    async def search(self, query: str, topk: int) -> list[Document]:
        """The best `topk` passages, best first.

        Raises InfraError without a well-formed response before the deadline. Raises ConfigError if the server will
        always refuse the request.
        """
        if topk < 1:
            raise ConfigError(f"topk is {topk}; ask for at least one passage")
        future: asyncio.Future[list[Document]] = asyncio.get_running_loop().create_future()
        pending = _PendingQuery(whole_characters(query[:QUERY_CHARACTERS]), future)
        self._queue(pending, topk)
        try:
            async with asyncio.timeout(self.timeout):
                return await future
        except TimeoutError:
            raise InfraError(f"{self.url} did not answer within {self.timeout:g} s; {pending.error}") from None

    def _queue(self, pending: _PendingQuery, topk: int) -> None:
        queue = self._waiting.setdefault(topk, [])
        queue.append(pending)
        if len(queue) >= self.batch:
            self._send(topk, queue)
        elif len(queue) == 1:
            loop = asyncio.get_running_loop()
            if self._under_way:
                loop.call_later(_LINGER_S, self._send, topk, queue)
            else:  # no request is under way: no need to wait
                loop.call_soon(self._send, topk, queue)

    def _send(self, topk: int, queue: list[_PendingQuery]) -> None:
        if self._waiting.get(topk) is not queue:
            return  # it was full before its time
        del self._waiting[topk]
        task = asyncio.get_running_loop().create_task(self._answer(queue, topk))
        self._sending[task] = queue
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        queue = self._sending.pop(task)
        if not task.cancelled() and (exc := task.exception()):  # a bug: do not wait for the deadline
            for pending in queue:
                _fail(pending, exc)

    async def _answer(self, batch: list[_PendingQuery], topk: int) -> None:
        """Set the result of each query of the batch. A query without a result fails at its deadline."""
        for attempt in count(1):
            if not (batch := [pending for pending in batch if not pending.future.done()]):
                return
            try:
                results = await self._ask([pending.query for pending in batch], topk)
            except (InfraError, ConfigError) as exc:
                if len(batch) > 1:
                    await asyncio.gather(*[self._answer([pending], topk) for pending in batch])
                    return
                if not isinstance(exc, InfraError) or isinstance(exc, WrongAnswerError):
                    _fail(batch[0], exc)
                    return
                batch[0].error = one_line(exc)
            else:
                for pending, documents in zip(batch, results, strict=True):
                    if not pending.future.done():
                        pending.future.set_result(documents)
                return
            await asyncio.sleep(pause(attempt, 0.2, _LONGEST_WAIT_S))

    async def _ask(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        body = {"queries": list(queries), "topk": topk, "return_scores": True}
        self._under_way += 1
        try:
            answer = await self._service.post(body)
        finally:
            self._under_way -= 1
        try:
            return [documents[:topk] for documents in read_answer(answer, len(queries))]
        except ValueError as exc:
            raise WrongAnswerError(f"{self.url} gave no answer of a retriever: {exc}") from None


def read_answer(answer: JSON, queries: int) -> list[list[Document]]:
    """The passages for each query, from a response with or without scores. Raises ValueError for any other response."""
    results = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        raise ValueError(f'{answer!r:.100} has no list "result"')
    if len(results) != queries:
        raise ValueError(f"{len(results)} results for {queries} queries")
    return [_documents(result) for result in results]


def _documents(passages: Any) -> list[Document]:
    if not isinstance(passages, list):
        raise ValueError(f"the result of a query is {passages!r:.100}, not a list of passages")
    return [_document(passage) for passage in passages]


def _document(passage: Any) -> Document:
    inner = passage.get("document", passage) if isinstance(passage, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("contents"), str):
        raise ValueError(f'{passage!r:.100} is not a passage: it has no text "contents"')
    passage_id = str(inner.get("id", ""))  # servers of web searches give none
    score = None if inner is passage else _score(passage.get("score"))
    return Document(whole_characters(passage_id), whole_characters(inner["contents"]), score)


def _score(value: Any) -> float | None:
    usable = isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < math.inf
    try:
        return float(value) if usable else None
    except OverflowError:  # a whole number of 400 digits
        return None


def _fail(pending: _PendingQuery, exc: BaseException) -> None:
    if not pending.future.done():
        pending.future.set_exception(exc)


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = is_url(url) and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"the retriever's URL {url!r} is not valid; write http://host:port/retrieve")
    return parts._replace(path="/retrieve").geturl() if parts.path in ("", "/") else url
