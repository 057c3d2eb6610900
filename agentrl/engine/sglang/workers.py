"""The workers behind a URL, and the requests sent to each worker: aborts, and the context length."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from agentrl.engine.sglang.connections import Connections, UnavailableError, without_credentials
from agentrl.errors import EngineError

_log = logging.getLogger(__name__)

CONTROL_S = 5.0
"""The most seconds for a control request (abort, workers, server_info). A healthy server responds to such a request at
once."""
_LIST_S = 10.0
"""Seconds during which a router's list of workers is reused."""


class Workers:
    """The servers in a router's list, or the server itself if there is no such list."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._url = connections.address.url
        self._seen: tuple[float, list[str]] = (-math.inf, [])

    async def abort(self, command: Mapping[str, Any]) -> None:
        """Send an abort command to all workers: the router has no /abort_request, and no list of requests. Errors are
        logged."""
        body = json.dumps(command).encode()

        async def tell(worker: str) -> None:
            try:
                await self._connections.post(f"{worker}/abort_request", body, {}, CONTROL_S)
            except EngineError as exc:
                _log.warning("%s", exc)
            except TimeoutError:
                _log.warning("%s/abort_request: no answer within %g s", worker, CONTROL_S)

        try:
            async with asyncio.timeout(CONTROL_S):
                await asyncio.gather(*[tell(worker) for worker in await self._urls()])
        except TimeoutError:
            _log.warning("%s: abort of %s not confirmed within %g s", self._url, dict(command), CONTROL_S)

    async def context_length(self) -> int:
        """The smallest context length of all running workers. Raises EngineError if no worker responds, or if a
        response lacks the length."""
        requests = [self._context_length_of(worker) for worker in await self._urls()]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        lengths = [answer for answer in answers if isinstance(answer, int)]
        for answer in answers:
            if isinstance(answer, BaseException) and not (lengths and isinstance(answer, UnavailableError)):
                raise answer
        return min(lengths)

    async def _urls(self) -> list[str]:
        seen, workers = self._seen
        if time.monotonic() - seen < _LIST_S:
            return workers
        try:
            listed = (await self._json(f"{self._url}/workers"))["workers"]
            # With --dp-aware a router lists each rank of a server, as http://host:port@rank.
            urls = [re.sub(r"/?(@\d+)?$", "", worker["url"], count=1) for worker in listed]
            workers = list(dict.fromkeys(map(without_credentials, urls)))
        except (EngineError, KeyError, TypeError):
            pass  # a busy router still has the previous workers
        workers = workers or [self._url]
        self._seen = (time.monotonic(), workers)
        return workers

    async def _context_length_of(self, worker: str) -> int:
        try:
            info = await self._json(f"{worker}/server_info")
        except UnavailableError:
            raise
        except EngineError:
            info = await self._json(f"{worker}/get_server_info")  # the older name
        # context_length is null unless set by hand; the scheduler's own bounds are always present.
        candidates = [info.get(name) for name in ("max_req_input_len", "context_length", "max_total_num_tokens")]
        lengths = [length for length in candidates if type(length) is int and length > 0]
        if not lengths:
            raise EngineError(f"{worker}/server_info names no context length; set limits.context")
        return min(lengths)

    async def _json(self, url: str) -> Mapping[str, Any]:
        """Get a JSON object. Raises EngineError for any other response, and UnavailableError for no response."""
        try:
            value = json.loads(await self._connections.get(url, CONTROL_S))
        except TimeoutError as exc:
            raise UnavailableError(f"{url}: no answer within {CONTROL_S:g} s") from exc
        except (ValueError, RecursionError) as exc:
            raise EngineError(f"{url}: not JSON: {type(exc).__name__}") from exc
        if not isinstance(value, dict):
            raise EngineError(f"{url}: {type(value).__name__} instead of a JSON object")
        return value
