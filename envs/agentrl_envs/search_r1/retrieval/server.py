"""Serve a corpus over HTTP as Search-R1's server does: `POST /retrieve`, and `GET /health` for supervisors."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from agentrl._util.config_errors import problems
from agentrl._util.http_log import server_log
from agentrl.errors import ConfigError
from agentrl_envs.search_r1.retrieval.documents import Document
from agentrl_envs.search_r1.retrieval.index import TantivyIndex

_log = logging.getLogger("agentrl")

BODY_BYTES = 32 << 20
"""The most bytes of a request. A full batch of the longest queries of agentrl's client has fewer."""
MOST_QUERIES, MOST_PASSAGES = 8192, 1000
_CACHE_BYTES = 64 << 20
_SHOWN = '{"queries": ["..."], "topk": 3, "return_scores": true}'


class _Body(BaseModel):
    queries: Annotated[list[str], Field(max_length=MOST_QUERIES)]
    topk: Annotated[int, Field(ge=0, le=MOST_PASSAGES)] | None = None
    """The number of passages for each query. None and 0 mean the server's default, as in Search-R1's server."""
    return_scores: bool = False

    @classmethod
    def read(cls, raw: bytes) -> _Body:
        """Parse a request. Raises HTTPBadRequest, which explains the mistake and shows a correct request."""
        try:
            value = json.loads(raw)
            if not isinstance(value, dict):
                raise web.HTTPBadRequest(text=f"the body is not a JSON object; write {_SHOWN}")
            return cls.model_validate(value)
        except ValidationError as exc:
            raise web.HTTPBadRequest(text=f"{problems(exc, cls)}; write {_SHOWN}") from None
        except (ValueError, RecursionError) as exc:
            raise web.HTTPBadRequest(text=f"the body is not JSON ({exc}); write {_SHOWN}") from None


class AnswerCache:
    """A cache of the latest responses as JSON, with at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most, self.bytes = most, 0
        self.answers: OrderedDict[tuple[str, int, bool], bytes] = OrderedDict()

    def get(self, key: tuple[str, int, bool]) -> bytes | None:
        if (answer := self.answers.get(key)) is not None:
            self.answers.move_to_end(key)
        return answer

    def put(self, key: tuple[str, int, bool], answer: bytes) -> None:
        if key not in self.answers:
            self.answers[key] = answer
            self.bytes += _size(key, answer)
        while self.bytes > self._most:
            self.bytes -= _size(*self.answers.popitem(last=False))


def _size(key: tuple[str, int, bool], answer: bytes) -> int:
    return 4 * len(key[0]) + len(answer) + 200


class _SearchServer:
    def __init__(self, index: TantivyIndex, topk: int) -> None:
        self._index, self._topk = index, topk
        self._cache = AnswerCache(_CACHE_BYTES)
        self._workers = os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(self._workers, "agentrl-search")
        self._queries = self._cached = 0

    async def retrieve(self, request: web.Request) -> web.Response:
        body = _Body.read(await request.read())
        topk = body.topk or self._topk
        keys = [(query, topk, body.return_scores) for query in body.queries]
        answers = {key: self._cache.get(key) for key in keys}
        missing = [key for key, answer in answers.items() if answer is None]
        self._queries += len(keys)
        self._cached += len(keys) - len(missing)
        for key, answer in zip(missing, await self._searched(missing), strict=True):
            answers[key] = answer
            self._cache.put(key, answer)
        results = b", ".join(answers[key] or b"" for key in keys)
        return web.Response(body=b'{"result": [' + results + b"]}", content_type="application/json")

    async def _searched(self, keys: Sequence[tuple[str, int, bool]]) -> list[bytes]:
        """Search the queries in several threads at once: tantivy releases Python's global lock."""
        size = -(-len(keys) // self._workers) or 1
        parts = [keys[start : start + size] for start in range(0, len(keys), size)]
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*[loop.run_in_executor(self._threads, self._answers, part) for part in parts])
        return [answer for part in answers for answer in part]

    def _answers(self, keys: Sequence[tuple[str, int, bool]]) -> list[bytes]:
        return [_written(self._index.search(query, topk), scores) for query, topk, scores in keys]

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "ok",
                "documents": self._index.documents,
                "index": str(self._index.folder),
                "topk": self._topk,
                "queries": self._queries,
                "cached": self._cached,
            }
        )

    async def close(self, app: web.Application) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _written(documents: Sequence[Document], scores: bool) -> bytes:
    rows = [{"id": document.id, "contents": document.contents} for document in documents]
    if not scores:
        return json.dumps(rows).encode()
    pairs = zip(rows, documents, strict=True)
    return json.dumps([{"document": row, "score": document.score} for row, document in pairs]).encode()


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        status, message = 413, f"the body has more than {BODY_BYTES} bytes; send fewer queries at once"
    except web.HTTPException as exc:
        status, message = exc.status, exc.text or exc.reason
        if status in (404, 405):
            message = f"{message}; this server answers POST /retrieve and GET /health"
    except Exception as exc:  # noqa: BLE001 - the boundary of a request: it must not harm other requests
        _log.exception("%s", request.path)
        status, message = 500, f"{type(exc).__name__}: {exc}"
    return web.json_response({"error": message}, status=status)


def create_app(index: TantivyIndex, topk: int = 3) -> web.Application:
    """The endpoints. A request without a number gets `topk` passages."""
    server = _SearchServer(index, topk)
    app = web.Application(middlewares=[_errors], client_max_size=BODY_BYTES)
    app.add_routes([web.post("/retrieve", server.retrieve), web.get("/health", server.health)])
    app.on_cleanup.append(server.close)
    return app


def bind(host: str, port: int) -> socket.socket:
    """Bind the address before the index is built, which may take long. Port 0 takes a free port.

    Clients cannot connect until the server runs. Raises ConfigError for an address that is not available.
    """
    with _taken_address(host, port), ExitStack() as on_error:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = on_error.enter_context(socket.socket(family, kind, protocol))
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that was killed is started again at once
        taken.bind(address)
        on_error.pop_all()
    return taken


@contextmanager
def _taken_address(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ConfigError(f"cannot listen at {host}:{port}: {exc.strerror}; choose another --port or --host") from exc


@asynccontextmanager
async def running_server(index: TantivyIndex, listening: socket.socket, topk: int = 3) -> AsyncIterator[str]:
    """Serve while the context is open, and yield the URL. At the end, running requests are finished first."""
    log = server_log(f"{__name__}.http")
    runner = web.AppRunner(
        create_app(index, topk), access_log=None, logger=log, shutdown_timeout=5.0, handler_cancellation=True
    )
    await runner.setup()
    try:
        host, port = listening.getsockname()[:2]
        with _taken_address(host, port):  # by another server that was indexing, too
            await web.SockSite(runner, listening, backlog=1024).start()
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}/retrieve"
    finally:
        await runner.cleanup()
