"""Serve an engine in the vendors' API formats without an episode: each request is independent, and none is recorded."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast

from aiohttp import web

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, Exchange, RefusalKind, RefusedError, Reply
from agentrl.engine.base import Engine
from agentrl.engine.sglang.access import Access, exposure
from agentrl.episode.options import EpisodeOptions, SpecialTokens
from agentrl.gateway.serving.bodies import DeniedError
from agentrl.gateway.serving.http import LimitedSession, WireServer, keys
from agentrl.gateway.serving.limits import SessionLimits
from agentrl.gateway.session.exchange import RefusedExchange
from agentrl.gateway.session.session import Session
from agentrl.render.base import Renderer
from agentrl.types import JSON, Limits, SamplingParams

_log = logging.getLogger(__name__)

_OBEYED = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "seed": "sampling_seed"}
_NEUTRAL: Mapping[str, JSON] = {
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "min_tokens": 0,
    "length_penalty": 1,
    "thinking_token_budget": None,
    "watermarking": False,
}
"""Sampling parameters that no engine here supports -> the value that has no effect."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """Replies to each request in a new session. The client's sampling parameters are obeyed."""

    engine: Engine
    renderer: Renderer
    limits: Limits = Limits()  # noqa: RUF009 - immutable
    options: SessionOptions = SessionOptions()  # noqa: RUF009 - immutable
    special_tokens: SpecialTokens = "keep"

    def ask(self, request: ChatRequest) -> Exchange:
        """Accept a request. Never raises: the methods of the returned exchange raise."""
        try:
            session = self._session(request)
        except RefusedError as refused:
            return RefusedExchange(refused)
        # Without the digest, a repeated request is a new request.
        return _Alone(session.ask(replace(request, digest="", retried=False, idempotency_key="")), session)

    @property
    def reads_images(self) -> bool:
        """Whether the model is shown the images of a request."""
        return self.renderer.certificate.capabilities.get("images", False)

    def note_refused(self, target: str, status: int, message: str, kind: RefusalKind = "invalid") -> None:
        """Do nothing: requests are not recorded."""

    async def count(self, request: ChatRequest) -> int:
        """The number of tokens of the request's whole prompt. Raises RefusedError for a prompt that is too long or
        cannot be written."""
        return await self._session(request).count(request)

    def _session(self, request: ChatRequest) -> Session:
        session = Session("", options=self.options)
        limits = replace(self.limits, turns=self.options.most_replies)
        params = _sampling(request.recorded)
        episode = EpisodeOptions(limits=limits, sampling_params=params, special_tokens=self.special_tokens)
        session.play(self.engine, self.renderer, episode, None, _conversation(request))
        return session


@dataclass(frozen=True, slots=True)
class _Alone:
    """An exchange with a single client. If the client disconnects, the generation is stopped."""

    exchange: Exchange
    session: Session

    async def accepted(self) -> None:
        await self.exchange.accepted()

    async def replies(self) -> Sequence[Reply]:
        try:
            return await self.exchange.replies()
        except RefusedError:
            if self.session.error is not None:
                _log.error("a request failed", exc_info=self.session.error)
            raise

    def delivered(self) -> None:
        self.exchange.delivered()

    def lost(self) -> None:
        self.exchange.lost()
        self.session.close("the client has gone")


def _sampling(parameters: Mapping[str, JSON]) -> SamplingParams:
    """The client's sampling parameters. Raises RefusedError for an unsupported parameter."""
    for name, neutral in _NEUTRAL.items():
        if parameters.get(name, neutral) != neutral:
            raise RefusedError("invalid", f"{name}: this server does not sample with it; leave it out")
    for name in _OBEYED:
        value = parameters.get(name, 0)
        kinds = int if name in ("top_k", "seed") else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise RefusedError("invalid", f"{name} must be a number, not {value!r:.80}")
    return cast(SamplingParams, {ours: parameters[theirs] for theirs, ours in _OBEYED.items() if theirs in parameters})


def _conversation(request: ChatRequest) -> str:
    """The session id for the engine's prefix cache, which is equal for all turns of a conversation."""
    hashed = hashlib.blake2b(digest_size=8)
    for entry in request.entries:
        hashed.update(f"{entry.role}\n{entry.text}\n".encode())
        if entry.role == "user":
            break
    return hashed.hexdigest()


@asynccontextmanager
async def running_server(
    answering: Standalone, host: str = "127.0.0.1", port: int = 0, *, model_name: str, api_key: str | None = None
) -> AsyncIterator[str]:
    """A context manager that serves an engine in the vendors' API formats, and yields the server's URL. Port 0 picks a
    free port.

    Raises OSError if the port is taken, and ConfigError for an invalid host or key.
    """
    access = Access(host, api_key)

    limits = SessionLimits()

    def find(key: str, request: web.BaseRequest) -> LimitedSession:
        _check(access, key, request)
        return answering, limits

    if warning := exposure(host, api_key, "generate"):
        _log.warning("%s", warning)
    server = WireServer(find, model_name)
    try:
        port = await server.listen(host, port)
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await server.close()


def _check(access: Access, key: str, request: web.BaseRequest) -> None:
    """Apply the rules of `Access` to a request. The key may be in the path, or in any header or parameter of the
    vendors' clients. Raises DeniedError."""
    if access.api_key is None:
        denied = access.refuse_page(request)
        if denied is not None:
            raise DeniedError(*denied)
        return
    matches = [
        hmac.compare_digest(candidate.encode(errors="surrogateescape"), access.api_key.encode())
        for candidate in keys(key, request)
    ]
    if not any(matches):
        raise DeniedError(401, "this server wants its API key as Bearer token, as x-api-key or in /s/KEY/v1")
