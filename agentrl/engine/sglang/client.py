"""A client of SGLang's native HTTP protocol, directly or through a router."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import string
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from agentrl.engine.base import GRAMMAR_CHANGED, RETRY_S, AsyncClosing
from agentrl.engine.sglang import workers
from agentrl.engine.sglang.answers import read_generation
from agentrl.engine.sglang.bodies import check_sampling_params
from agentrl.engine.sglang.connections import Address, Connections, UnavailableError, patiently
from agentrl.engine.sglang.encoding import HistoryEncoder
from agentrl.engine.sglang.scoring import is_reported_as
from agentrl.engine.sglang.workers import Workers
from agentrl.errors import ConfigError, EngineError, RequestError
from agentrl.image import Image
from agentrl.types import Generation, SamplingParams

_log = logging.getLogger(__name__)

T = TypeVar("T")

_ABORT_PAUSE_S = 0.05
"""Seconds before an abort is sent again. Each further pause is twice as long."""
_WARN_S = 60.0
"""Seconds between two warnings about an unavailable server."""
_ROUTING_KEY = "X-SMG-Routing-Key"
_KEY_CHARACTERS = 1024
"""The most characters of a routing key: servers limit the length of headers."""


@dataclass(slots=True)
class _Request:
    """A running call of `generate`, with the data that `abort` needs."""

    rid: str
    wire_rid: str = ""
    aborted: bool = False
    gone: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        """Abort the call. Safe from any thread."""
        self.aborted = True
        with suppress(RuntimeError):  # the event loop is closed
            self.loop.call_soon_threadsafe(self._wake.set)

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or return early if the call is aborted."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


class SGLangEngine(AsyncClosing):
    """Generates with an SGLang server or router at `url`. Safe to use from several event loops and threads.

    `timeout` is the limit in seconds for the whole response to an attempt. `retry_s` bounds the retries of an
    unavailable server: after refused or lost connections and the statuses 408, 429, 500, 502, 503 and 504 a request is
    sent again for this many seconds. Pauses between attempts are 0.5 s, 1 s, 2 s, ... at most 5 s, with up to 50 %
    random jitter, but never less than the server's `Retry-After` (of at most 60 s). With `retry_s` 0, there is a single
    attempt.

    `api_key` is sent as `Authorization: Bearer`. The default is the environment variable AGENTRL_API_KEY. A user name
    and password in the URL are sent as Basic authentication instead. `ca` is a PEM file with the certificates to trust,
    for a server without a certificate signed by a known authority. The environment variable SSL_CERT_FILE does the
    same.

    With `vocab_size`, a token id beyond the vocabulary in a prompt or response is an error. Without `vocab_size`, any
    id of 32 bits is accepted. `extra` holds more fields for the request body, such as `{"return_routed_experts":
    True}`. The results of these fields are in `Generation.meta`, which is SGLang's `meta_info` without the log-probs.

    Requests of a session have the header X-SMG-Routing-Key. By this header a router sends all requests of a session to
    the same worker, whose cache has the session's prefix.
    """

    takes_images = True
    takes_grammars = True

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 3600.0,
        retry_s: float = RETRY_S,
        max_connections: int = 4096,
        api_key: str | None = None,
        ca: str | Path | None = None,
        vocab_size: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(retry_s, bool) or not isinstance(retry_s, int | float) or not 0 <= retry_s < math.inf:
            raise ConfigError(f"the engine's retry_s is {retry_s!r}; give a number of seconds, 0 or more")
        address = Address.read(url, api_key)
        self.url = address.url
        self._timeout = timeout
        self._retry_s = retry_s
        self._warned = -math.inf
        self.stopped: Callable[[], bool] = lambda: False
        """A function that returns the trainer's abort flag. While the flag is set, no request is repeated: requests
        that wait for the server return "abort"."""
        self._vocab_size = vocab_size
        self.extra: Mapping[str, Any] = dict(extra or {})
        """Further fields for the body of each later request."""
        self._history = HistoryEncoder(vocab_size=vocab_size)
        self._connections = Connections(address, limit=max_connections, ca=ca)
        self._workers = Workers(self._connections)
        self._requests: dict[int, _Request] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._context_length: int | None = None

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Continue `input_ids`, with one pad token for each image. Sampling parameters are passed on unchanged, except
        values that no engine can obey. `extra` adds fields to the body of this request alone.

        Generating twice costs time but changes no state, so an attempt without a response is repeated. A refusal (of a
        prompt that is too long, for example) is final and raises RequestError with SGLang's message. Cancellation and
        time-out abort the request at the worker before the exception is raised.
        """
        check_sampling_params(sampling_params)
        more = {**self.extra, **(extra or {})}
        fields = {
            # The trainer uses token ids. Only people read the text, and want to see the whole text.
            "sampling_params": {
                **sampling_params,
                "skip_special_tokens": False,
                "no_stop_trim": True,
                "spaces_between_special_tokens": False,
            },
            "return_logprob": True,
            "stream": False,
            **({"image_data": [image.uri for image in images]} if images else {}),
            **more,
        }
        history = self._history.encode(session_id, input_ids)
        headers = {_ROUTING_KEY: _routing_key(session_id)} if session_id else {}
        request = _Request(rid or uuid4().hex)
        self._requests[id(request)] = request

        async def attempt() -> Generation:
            # A worker may still hold the rid of a lost attempt, and refuses duplicates.
            request.wire_rid = f"{request.rid}-{uuid4().hex}"
            return await self._attempt(_body(history, {**fields, "rid": request.wire_rid}), headers, request.wire_rid)

        try:
            generation = await self._patiently(attempt, request.pause, lambda: request.aborted or self.stopped())
        finally:
            request.gone = True
            del self._requests[id(request)]
        if generation is None:
            return Generation((), (), "abort")
        if generation.tokens and GRAMMARS & sampling_params.keys():
            flags = await self._constrained(input_ids, generation, sampling_params, images, more, headers)
            generation = replace(generation, constrained=flags)
        return generation

    async def _constrained(
        self,
        input_ids: Sequence[int],
        generation: Generation,
        sampling_params: SamplingParams,
        images: Sequence[Image],
        more: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> Sequence[bool]:
        """For each token, whether a grammar has changed its probability. All True if the server cannot tell."""
        unknown = [True] * len(generation.tokens)
        if not is_comparable(generation, sampling_params, images):
            return unknown
        body, where = scoring_body(input_ids, generation, images, more), f"{self.url}/generate"
        try:
            answer = await self._patiently(
                lambda: self._connections.post(where, body, headers, self._timeout), ended=lambda: self.stopped()
            )
        except RequestError:  # such as an adapter that the server has dropped meanwhile
            return unknown
        return unknown if answer is None else constrained(generation, answer)

    async def _patiently(
        self,
        attempt: Callable[[], Awaitable[T]],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        ended: Callable[[], bool] = lambda: False,
    ) -> T | None:
        return await patiently(attempt, self._retry_s, wait=wait, ended=ended, note=self._note_away)

    def _note_away(self, exc: UnavailableError) -> None:
        """Log an outage of the server. Thousands of requests may wait, so a warning is logged once in _WARN_S, and
        other lines as INFO."""
        now = time.monotonic()
        level = logging.WARNING if now - self._warned >= _WARN_S else logging.INFO
        self._warned = now if level == logging.WARNING else self._warned
        _log.log(level, "%s; the engine is unreachable: requests are repeated for %g s", exc, self._retry_s)

    async def _attempt(self, body: bytes, headers: Mapping[str, str], wire_rid: str) -> Generation:
        where = f"{self.url}/generate"
        try:
            answer = await self._connections.post(where, body, headers, self._timeout)
        except asyncio.CancelledError:
            await self._abandon(wire_rid)
            raise
        except TimeoutError as exc:
            await self._abandon(wire_rid)
            raise EngineError(
                f"{where}: no answer within {self._timeout:g} s; raise the engine's timeout or lower max_new_tokens"
            ) from exc
        return read_generation(answer, where, self._vocab_size)

    async def abort(self, rid: str | None = None) -> None:
        """End the requests of this rid, or all requests of the workers, including requests of other clients. Never
        raises.

        An abort may arrive before the request, for example if the request waits in a router's queue. The worker then
        forgets the abort. So the abort is sent again until the requests of this engine are gone, for at most 5 s.
        """
        requests = [request for request in list(self._requests.values()) if rid in (None, request.rid)]
        for request in requests:
            request.abort()
        commands = [{"abort_all": True}] if rid is None else [{"rid": request.wire_rid} for request in requests]
        pause, deadline = _ABORT_PAUSE_S, time.monotonic() + workers.CONTROL_S
        while commands and time.monotonic() < deadline:
            await asyncio.gather(*[self._workers.abort(command) for command in commands])
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            commands = [{"rid": request.wire_rid} for request in requests if not request.gone]

    def forget(self, session_id: str) -> None:
        """Delete the stored tokens of an ended session."""
        self._history.forget(session_id)

    def let_go(self) -> None:
        """Stop retrying the running requests, because the server is gone. Running requests return "abort", or raise."""
        for request in list(self._requests.values()):
            request.abort()

    async def context_length(self) -> int:
        """The most tokens of a sequence that every running worker accepts, from the workers' /server_info. The workers
        are asked once.

        Waits for an unavailable server as `generate` does. Raises EngineError if no worker responds by then, or if a
        response lacks the length.
        """
        if self._context_length is None:
            length = await self._patiently(self._workers.context_length)
            assert length is not None  # without `ended`, the attempts never end early
            self._context_length = length
        return self._context_length

    async def close(self) -> None:
        """Close the connections of all event loops. Safe to call twice, and from any loop."""
        here = asyncio.get_running_loop()
        if pending := [task for task in self._abandoned if task.get_loop() is here]:
            await asyncio.wait(pending, timeout=workers.CONTROL_S)
        await self._connections.close()

    async def _abandon(self, wire_rid: str) -> None:
        """End a request whose caller is gone. A second cancellation does not interrupt this."""
        task = asyncio.create_task(self._workers.abort({"rid": wire_rid}))
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        await asyncio.shield(task)


def _body(history: list[bytes], fields: Mapping[str, Any]) -> bytes:
    """The JSON text `{"input_ids": [...], **fields}`. `history` has the ids, already encoded."""
    try:
        rest = json.dumps(fields)[1:].encode()
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"sampling_params or extra cannot be written as JSON: {exc}") from exc
    return b"".join((b'{"input_ids": [', *history, b"], ", rest))


def _routing_key(session_id: str) -> str:
    """Turn any session id into a valid header value. Equal ids give equal values."""
    key = quote(session_id, safe=string.punctuation.replace("%", ""), errors="surrogatepass")
    return key if len(key) <= _KEY_CHARACTERS else hashlib.sha256(key.encode()).hexdigest()


GRAMMARS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
"""The names of SGLang's sampling parameters for grammars."""


def is_comparable(generation: Generation, sampling_params: Mapping[str, Any], images: Sequence[Image]) -> bool:
    """Whether the tokens can be scored without the grammar. The log-probs of such a score are at temperature 1, and
    under a single version of the weights.

    With images, tokens for media must have been forbidden: a sampled media token would stand for a further image.
    """
    whole = generation.finish_reason != "abort" and not generation.earlier_versions
    forbidden = sampling_params.get("logit_bias") or {}
    readable = not images or (forbidden and not any(str(token) in forbidden for token in generation.tokens))
    return bool(whole and readable and sampling_params.get("temperature", 1.0) == 1.0)


def scoring_body(
    prompt: Sequence[int], generation: Generation, images: Sequence[Image], fields: Mapping[str, Any]
) -> bytes:
    """The body of a request for the log-probs of a generation's tokens. `fields` select the policy, such as a LoRA
    adapter.

    `prompt` has a single pad token for each image. SGLang replaces each pad by the tokens of its image, so only SGLang
    knows the number of the prompt's tokens.
    """
    length = generation.meta.get("prompt_tokens") if images else None
    body = {
        **fields,
        "input_ids": [*prompt, *generation.tokens],
        **({"image_data": [image.uri for image in images]} if images else {}),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": (length if isinstance(length, int) else len(prompt)) - 1,
        "stream": False,
    }
    return json.dumps(body).encode()


def constrained(generation: Generation, answer: bytes) -> list[bool]:
    """For each token, whether the grammar has changed its probability, by the scores in the response. All True if the
    response has no scores."""
    count = len(generation.tokens)
    try:
        meta = json.loads(answer)["meta_info"]
        scored = meta["input_token_logprobs"][-count:]
        same = is_reported_as(generation.tokens, [int(entry[1]) for entry in scored])
        version = meta.get("weight_version")
        if not same or (None if version is None else str(version)) != generation.weight_version:
            return [True] * count
        pairs = zip(generation.log_probs, (float(entry[0]) for entry in scored), strict=True)
        return [not log_prob - free < GRAMMAR_CHANGED for log_prob, free in pairs]
    except (ValueError, TypeError, LookupError):
        return [True] * count
