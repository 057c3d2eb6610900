"""SGLang's HTTP endpoints before any Engine, so that what speaks to SGLang speaks to it.

`text` in answers is all that was sampled, as SGLang gives it with no_stop_trim and without skip_special_tokens.
Sampling parameters that an Engine cannot obey are refused, not ignored.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from aiohttp import web

from agentrl.engine.base import Engine, Generation, SamplingParams
from agentrl.errors import ConfigError, EngineError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BODY_BYTES = 256 << 20
_MAX_NEW_TOKENS = 128  # SGLang's default

# What an Engine obeys, and the types JSON may bring it in.
_OBEYED: Mapping[str, tuple[type, ...]] = {
    "temperature": (float, int),
    "top_p": (float, int),
    "top_k": (int,),
    "max_new_tokens": (int,),
    "stop": (str, list),
    "stop_token_ids": (list,),
    "sampling_seed": (int,),
}
# They change only `text`, or nothing here.
_IGNORED = frozenset({"skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens", "custom_params"})
# What SGLang takes besides, at the values that mean nothing.
_NEUTRAL: Mapping[str, Any] = {
    "min_p": 0.0,
    "min_new_tokens": 0,
    "n": 1,
    "ignore_eos": False,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}


class _RequestError(Exception):
    """The client's mistake: HTTP 400 with this text."""


class _Server:
    """One engine and the requests it is working on."""

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        encode: Callable[[str], Sequence[int]] | None,
        decode: Callable[[Sequence[int]], str] | None,
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._encode = encode
        self._decode = decode
        self._running: dict[str, int] = {}
        """Prompt tokens of each request, by rid."""
        self._paused = False
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        """Requests that came while generation was paused: true lets them start, false aborts them."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/generate", self.generate),
            web.get("/health", self.health),
            web.get("/health_generate", self.health),
            web.get("/model_info", self.model_info),
            web.get("/get_model_info", self.model_info),
            web.get("/server_info", self.server_info),
            web.get("/get_server_info", self.server_info),
            web.get("/workers", self.workers),
            web.get("/v1/loads", self.loads),
            web.get("/get_load", self.load),
            web.post("/abort_request", self.abort_request),
            web.post("/pause_generation", self.pause_generation),
            web.post("/continue_generation", self.continue_generation),
            web.get("/flush_cache", self.flush_cache),
            web.post("/flush_cache", self.flush_cache),
            web.post("/update_weights_from_disk", self.update_weights_from_disk),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        start = time.perf_counter()
        body = await _json(request)
        input_ids = self._input_ids(body)
        sampling_params = _sampling_params(body.get("sampling_params"))
        await self._fit(len(input_ids), sampling_params)
        rid = body.get("rid") or uuid4().hex
        if not isinstance(rid, str):
            raise _RequestError("rid must be a string")
        if rid in self._running:
            raise _RequestError(f"Duplicate request ID detected: {rid}")
        session_id = request.headers.get("X-SMG-Routing-Key", "")
        self._running[rid] = len(input_ids)
        try:
            if await self._may_start(rid):
                generation = await self._engine.generate(input_ids, sampling_params, session_id=session_id, rid=rid)
            else:
                generation = Generation((), (), "abort")
        finally:
            del self._running[rid]
        answer = self._answer(generation, rid, len(input_ids), bool(body.get("return_logprob")))
        answer["meta_info"]["e2e_latency"] = time.perf_counter() - start
        return await _stream(request, answer) if body.get("stream") else web.json_response(answer)

    async def _may_start(self, rid: str) -> bool:
        if not self._paused:
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[rid] = turn
        try:
            return await turn
        finally:
            del self._waiting[rid]

    async def abort(self, rid: str | None = None) -> None:
        for name, turn in self._waiting.items():
            if rid in (None, name) and not turn.done():
                turn.set_result(False)
        await self._engine.abort(rid)

    def _input_ids(self, body: Mapping[str, Any]) -> list[int]:
        ids = body.get("input_ids")
        if ids is None and isinstance(text := body.get("text"), str):
            if self._encode is None:
                raise _RequestError("this server has no tokenizer: send input_ids instead of text")
            ids = list(self._encode(text))
        if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int} or min(ids) < 0:
            raise _RequestError("input_ids must be one non-empty list of token ids (this server takes no batches)")
        return ids

    async def _fit(self, prompt: int, sampling_params: SamplingParams) -> None:
        """SGLang's own rule and words: it does not shorten what was asked for."""
        context, new = await self._engine.context_length(), sampling_params["max_new_tokens"]
        if prompt >= context:
            raise _RequestError(
                f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
            )
        if prompt + new > context:
            raise _RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {prompt + new} tokens: {prompt} tokens from the input messages and {new} tokens for the "
                "completion."
            )

    def _answer(self, generation: Generation, rid: str, prompt: int, return_logprob: bool) -> dict[str, Any]:
        tokens = list(generation.tokens)
        finish: dict[str, Any] = {"type": generation.finish_reason}
        match generation.finish_reason:
            case "stop":
                finish["matched"] = generation.matched
            case "length":
                finish["length"] = len(tokens)
            case "abort":
                finish["message"] = "Aborted"
        meta = {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": prompt,
            "completion_tokens": len(tokens),
            "cached_tokens": generation.cached_tokens,
            "weight_version": generation.weight_version or "default",
        }
        if return_logprob:
            pairs = zip(generation.log_probs, tokens, strict=True)
            meta["output_token_logprobs"] = [[log_prob, token, None] for log_prob, token in pairs]
        return {"text": self._decode(tokens) if self._decode else "", "output_ids": tokens, "meta_info": meta}

    async def health(self, request: web.Request) -> web.Response:
        await self._engine.context_length()
        return web.Response()

    async def model_info(self, request: web.Request) -> web.Response:
        # Not part of the Engine protocol: an engine whose weights change has it as an attribute.
        weight_version = getattr(self._engine, "weight_version", None) or "default"
        return web.json_response(
            {
                "model_path": self._model_name,
                "tokenizer_path": self._model_name,
                "is_generation": True,
                "weight_version": str(weight_version),
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        context = await self._engine.context_length()
        return web.json_response(
            {
                "model_path": self._model_name,
                "served_model_name": self._model_name,
                "context_length": context,
                "max_total_num_tokens": context,
                "tp_size": 1,
                "dp_size": 1,
                "version": "agentrl",
            }
        )

    async def workers(self, request: web.Request) -> web.Response:
        """A router that routes to itself, so that one address serves as both."""
        url = str(request.url.origin())
        worker = {"id": url, "url": url, "model_id": self._model_name, "worker_type": "regular", "is_healthy": True}
        return web.json_response({"workers": [worker], "total": 1})

    async def loads(self, request: web.Request) -> web.Response:
        waiting = len(self._waiting)
        core = {
            "dp_rank": 0,
            "num_running_reqs": len(self._running) - waiting,
            "num_waiting_reqs": waiting,
            "num_total_reqs": len(self._running),
            "num_used_tokens": sum(self._running.values()),
        }
        return web.json_response({"timestamp": time.time(), "version": "agentrl", "loads": [core]})

    async def load(self, request: web.Request) -> web.Response:
        tokens = sum(self._running.values())
        one = {
            "dp_rank": 0,
            "num_reqs": len(self._running),
            "num_waiting_reqs": len(self._waiting),
            "num_tokens": tokens,
        }
        return web.json_response([one])

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await _json(request)
        rid = body.get("rid")
        if body.get("abort_all"):
            await self.abort()
        elif isinstance(rid, str) and rid:
            await self.abort(rid)
        else:
            raise _RequestError('abort_request takes {"rid": "..."} or {"abort_all": true}')
        return web.Response()

    async def pause_generation(self, request: web.Request) -> web.Response:
        """What slime sends before a weight update: running requests are aborted, new ones wait."""
        if (mode := (await _json(request)).get("mode", "abort")) != "abort":
            raise _RequestError(f'pause_generation: mode {mode!r} is not supported here, only "abort"')
        self._paused = True
        await self._engine.abort()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        self._paused = False
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_result(True)
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Accepted, as clients insist on it; an Engine keeps its cache true to its weights by itself."""
        return web.Response(text="Cache flushed.\n")

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        """Take over the weights of a Hugging Face folder; generations that run go on with them."""
        body = await _json(request)
        path, load = body.get("model_path"), getattr(self._engine, "load_weights", None)
        version = body.get("weight_version") or getattr(self._engine, "weight_version", "default")
        if load is None or not isinstance(path, str):
            raise _RequestError('update_weights_from_disk takes {"model_path": "FOLDER"}, and an engine with weights')

        def update() -> None:
            from agentrl.models import load_model  # torch, which an engine with weights has

            if not Path(path).is_dir():  # "tiny" would be a model too
                raise ConfigError(f"update_weights_from_disk: {path} is no folder")
            load(load_model(path).state_dict(), str(version))

        try:
            await asyncio.to_thread(update)
        except EngineError as exc:  # another model's: the request is to blame, not the engine
            raise _RequestError(f"{path}: {exc}") from exc
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in SGLang's form."""
    try:
        return await handler(request)
    except (_RequestError, ConfigError) as exc:
        return web.json_response({"error": {"message": str(exc)}}, status=400)
    except EngineError as exc:
        return web.json_response({"error": {"message": str(exc)}}, status=500)


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as exc:
        raise _RequestError(f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise _RequestError("the body must be a JSON object")
    return body


def _sampling_params(given: Any) -> SamplingParams:
    """Take over what an Engine obeys; null means not given, as slime sends it."""
    if not isinstance(given, dict | None):
        raise _RequestError("sampling_params must be an object")
    params: dict[str, Any] = {"max_new_tokens": _MAX_NEW_TOKENS}
    for name, value in (given or {}).items():
        if value is None or name in _IGNORED or (name in _NEUTRAL and value == _NEUTRAL[name]):
            continue
        if name not in _OBEYED:
            raise _RequestError(f"sampling_params.{name}={value!r} is not supported by this server")
        if not isinstance(value, _OBEYED[name]) or isinstance(value, bool):
            raise _RequestError(f"sampling_params.{name} has the wrong type: {value!r}")
        params[name] = value
    params["stop"] = [stop] if isinstance(stop := params.get("stop", []), str) else stop
    params["stop_token_ids"] = params.get("stop_token_ids", [])
    for name, kind in (("stop", str), ("stop_token_ids", int)):
        if not all(type(item) is kind and item != "" for item in params[name]):
            raise _RequestError(f"sampling_params.{name} must be a list of {kind.__name__}, none empty")
    _check_ranges(params)
    return cast(SamplingParams, params)


def _check_ranges(params: Mapping[str, Any]) -> None:
    if params["max_new_tokens"] < 0:
        raise _RequestError(f"max_new_tokens must be at least 0, got {params['max_new_tokens']}.")
    if params.get("temperature", 1.0) < 0:
        raise _RequestError(f"temperature must be non-negative, got {params['temperature']}.")
    if not 0 < params.get("top_p", 1.0) <= 1:
        raise _RequestError(f"top_p must be in (0, 1], got {params['top_p']}.")
    if (top_k := params.get("top_k", -1)) != -1 and top_k < 1:
        raise _RequestError(f"top_k must be -1 (disable) or at least 1, got {top_k}.")


async def _stream(request: web.Request, answer: Mapping[str, Any]) -> web.StreamResponse:
    """Server-sent events. An Engine answers in one piece, so there is one event with all of it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: " + json.dumps(answer).encode() + b"\n\ndata: [DONE]\n\n")
    await response.write_eof()
    return response


def create_app(
    engine: Engine,
    *,
    model_name: str,
    encode: Callable[[str], Sequence[int]] | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> web.Application:
    """The endpoints as an aiohttp application; the engine stays the caller's to close.

    Run it with `handler_cancellation=True`, as `running_server` does, or a client that goes away leaves its generation
    running. Without `encode` requests must bring input_ids; without `decode` the `text` of answers is empty.
    """
    app = web.Application(middlewares=[_errors], client_max_size=_BODY_BYTES)
    server = _Server(engine, model_name, encode, decode)
    app.add_routes(server.routes())

    async def abort_all(_: web.Application) -> None:
        await server.abort()

    # Connections are waited for after this signal: what is running ends here, and its client gets what there is.
    app.on_shutdown.append(abort_all)
    return app


@asynccontextmanager
async def running_server(
    engine: Engine,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    model_name: str = "agentrl",
    encode: Callable[[str], Sequence[int]] | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> AsyncIterator[str]:
    """Serve while the context lasts, and yield the server's URL. Port 0 takes a free one.

    At the end running generations are aborted, and their clients get what there is. Raises OSError for a taken port.
    """
    app = create_app(engine, model_name=model_name, encode=encode, decode=decode)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=5.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def serve(
    engine: Engine,
    host: str = "127.0.0.1",
    port: int = 30000,
    *,
    model_name: str = "agentrl",
    encode: Callable[[str], Sequence[int]] | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM (so: in the main thread), or cancellation. `on_ready` is told the URL."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        async with running_server(engine, host, port, model_name=model_name, encode=encode, decode=decode) as url:
            if on_ready is not None:
                on_ready(url)
            await stop.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
