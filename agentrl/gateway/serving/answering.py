"""Sends the response to a request, as a single body or as a stream. A stream shows progress while the engine runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web

from agentrl.chat.request import Exchange, RefusedError, Reply
from agentrl.chat.wires.base import ReplyWriter, compact

ACCEPT_S = 2.0
"""Seconds for which the headers of a stream are held back, so that a refusal in this time has its own HTTP status."""
PROGRESS_S = 3.0
"""Seconds between two progress events of a stream. Clients accept about 60 s of silence."""
SILENCE_S = 20.0
"""Seconds between two signs of life in a response without streaming. A refusal before the first sign has its own HTTP
status."""

_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a stream. `X-Accel-Buffering` keeps a proxy from holding events back."""
_WHOLE = {"Content-Type": "application/json; charset=utf-8", "X-Accel-Buffering": "no"}


async def respond(
    request: web.BaseRequest, answer: ReplyWriter, exchange: Exchange, closing: asyncio.Future[None]
) -> web.StreamResponse:
    """Send the response, and report its delivery or loss to the exchange. The future `closing` is done when the gateway
    closes.

    Raises RefusedError as long as no byte has been sent, and ConnectionError if the client has disconnected.
    """
    try:
        if not answer.request.stream:
            return await _whole(request, answer, exchange, closing)
        return await _stream(request, answer, exchange, closing)
    except RefusedError:
        raise
    except BaseException:  # cancelled, because the client disconnected or the gateway closes; or broken
        exchange.lost()
        raise


async def _whole(
    request: web.BaseRequest, answer: ReplyWriter, exchange: Exchange, closing: asyncio.Future[None]
) -> web.StreamResponse:
    waiting = asyncio.ensure_future(exchange.replies())
    try:
        if not await _first(waiting, closing, SILENCE_S):
            return await _whole_at_length(request, answer, exchange, closing, waiting)
        response = json_response(answer.whole(_result(waiting)))
    finally:
        waiting.cancel()
    await response.prepare(request)
    exchange.delivered()
    await response.write_eof()
    return response


async def _whole_at_length(
    request: web.BaseRequest,
    answer: ReplyWriter,
    exchange: Exchange,
    closing: asyncio.Future[None],
    waiting: asyncio.Future[Sequence[Reply]],
) -> web.StreamResponse:
    """Send a response without streaming, with spaces before the JSON as signs of life for clients and proxies. After an
    error the connection is broken: the client then repeats the request, and gets the error."""
    response = web.StreamResponse(headers=_WHOLE)
    await response.prepare(request)
    while True:
        await response.write(b" ")
        if await _first(waiting, closing, SILENCE_S):
            break
    try:
        body = compact(answer.whole(_result(waiting))).encode()
    except BaseException:
        _break(request)
        raise
    exchange.delivered()
    await response.write_eof(body)
    return response


async def _stream(
    request: web.BaseRequest, answer: ReplyWriter, exchange: Exchange, closing: asyncio.Future[None]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_STREAM)
    with suppress(TimeoutError):  # the headers are sent anyway
        async with asyncio.timeout(ACCEPT_S):
            await exchange.accepted()
    await response.prepare(request)
    await response.write(answer.opening())
    waiting = asyncio.ensure_future(exchange.replies())
    try:
        while not (await _first(waiting, closing, PROGRESS_S)):
            await response.write(answer.progress())
        body, end = answer.closing(_result(waiting))
    except RefusedError as refused:
        await response.write_eof(answer.failure(refused))
        return response
    except Exception:
        _break(request)
        raise
    finally:
        waiting.cancel()
    # The next request can come right after the end. With a single write, a client with the end has the whole answer.
    exchange.delivered()
    await response.write_eof(body + end)
    return response


async def _first(
    waiting: asyncio.Future[Sequence[Reply]], closing: asyncio.Future[None], timeout: float | None
) -> bool:
    """Wait until the replies are there or the gateway closes. Returns False after `timeout` seconds without either."""
    done, _ = await asyncio.wait((waiting, closing), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


def _result(waiting: asyncio.Future[Sequence[Reply]]) -> Sequence[Reply]:
    """Wait for the replies. Raises RefusedError, also if the gateway closes first."""
    if waiting.done():
        return waiting.result()
    raise RefusedError("unavailable", "the gateway is closing; ask again later")


def _break(request: web.BaseRequest) -> None:
    """Break the connection, because an error status is impossible after the start of a response."""
    if request.transport is not None:
        request.transport.close()


def json_response(data: object, status: int = 200) -> web.Response:
    """A response with a JSON body."""
    return web.Response(body=compact(data).encode(), status=status, content_type="application/json")
