"""Serves any Engine with SGLang's HTTP endpoints, for clients of SGLang.

`text` in responses has all sampled tokens, as in SGLang with no_stop_trim and without skip_special_tokens. Sampling
parameters that an Engine cannot obey are refused, not ignored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from array import array
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from aiohttp import web

from agentrl._util.http_log import server_log
from agentrl._util.signals import stopping
from agentrl.engine.base import Engine, RequestFields, ask
from agentrl.engine.sglang.access import Access, Handler, exposure, guard
from agentrl.engine.sglang.admission import Admission
from agentrl.engine.sglang.bodies import GenerateBody, read_body, read_json
from agentrl.engine.sglang.weight_group import GROUP_TIMEOUT_S
from agentrl.engine.sglang.weights import StatusError, WeightEndpoints
from agentrl.errors import ConfigError, EngineError, RequestError
from agentrl.types import Generation, SamplingParams

_log = logging.getLogger(__name__)
_http_log = server_log(f"{__name__}.http")

_BODY_BYTES = 32 << 20
"""The most bytes of a request's body: about three million token ids."""
_IMAGE_BODY_BYTES = 128 << 20
"""The most bytes of a request's body if the engine takes images: the ids, and as base64 the 64 MiB of images that an
episode may show by default."""
_TOKEN_CHARACTERS = 256
"""The most characters of a token, with a margin: a run of spaces may be a token. A text that is longer than this number
times the context is refused."""


_NO_ARGUMENTS: Mapping[str, Any] = {}
_SECRETS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})
"""Arguments of SGLang's server that /server_info leaves out."""


class _EngineServer:
    """An engine with its requests."""

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        encode: Callable[[str], Sequence[int]] | None,
        decode: Callable[[Sequence[int]], str] | None,
        server_args: Mapping[str, Any],
        group_timeout: float,
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._encode = encode
        self._decode = decode
        self._server_args = server_args
        self._admission = Admission(engine)
        self._weights = WeightEndpoints(engine, self._admission, server_args, group_timeout)
        # A thread, so a long text does not block the server. A single thread, so the tokenizer has one user.
        self._encoding = ThreadPoolExecutor(1, "agentrl-tokenizer")

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
            *self._weights.routes(),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        start = time.perf_counter()
        takes_images = getattr(self._engine, "takes_images", False)
        raw = await read_body(request, _IMAGE_BODY_BYTES if takes_images else _BODY_BYTES)
        returns_experts = getattr(self._engine, "returns_experts", False)
        body = GenerateBody.read(read_json(raw), images=takes_images, experts=returns_experts)
        del raw  # several megabytes for each request that runs
        input_ids = body.input_ids if body.text is None else await self._encoded(body.text)
        assert input_ids is not None
        await self._fit(len(input_ids), body.sampling_params)
        rid = body.rid or uuid4().hex
        async with self._admission.request(rid, len(input_ids)) as may_start:
            if may_start:
                self._weights.refuse_lost()
                fields = RequestFields(session_id=request.headers.get("X-SMG-Routing-Key", ""), rid=rid)
                if body.images:
                    fields["images"] = body.images
                generation = await ask(self._engine, input_ids, body.sampling_params, fields)
            else:
                generation = Generation((), (), "abort", weight_version=self._weights.version)
        prompt = generation.meta.get("prompt_tokens") if body.images else len(input_ids)
        answer = self._answer(generation, rid, prompt, body.return_logprob)
        if body.return_experts:
            answer["meta_info"]["routed_experts"] = await self._routed_experts(body, [*input_ids, *generation.tokens])
        answer["meta_info"]["e2e_latency"] = time.perf_counter() - start
        return await _stream(request, answer) if body.stream else web.json_response(answer)

    async def _routed_experts(self, body: GenerateBody, tokens: Sequence[int]) -> str:
        """The experts of all tokens but the last, from `body.experts_start` on: numbers of 32 bits, as base64."""
        engine: Any = self._engine
        rows = await engine.routed_experts(tokens[:-1]) if len(tokens) > 1 else []
        numbers = array("i", [expert for row in rows[body.experts_start :] for layer in row for expert in layer])
        return b64encode(numbers.tobytes()).decode("ascii")

    async def _encoded(self, text: str) -> list[int]:
        if self._encode is None:
            raise RequestError("this server has no tokenizer: send input_ids instead of text")
        if len(text) > _TOKEN_CHARACTERS * (context := await self._engine.context_length()):
            raise RequestError(f"a text of {len(text)} characters does not fit into the context of {context} tokens")
        ids = list(await asyncio.get_running_loop().run_in_executor(self._encoding, self._encode, text))
        if not ids:
            raise RequestError("the tokenizer makes no token of this text")
        return ids

    async def _fit(self, prompt: int, sampling_params: SamplingParams) -> None:
        """Check lengths with SGLang's rule and messages. A request that is too long is refused, not shortened."""
        context, new = await self._engine.context_length(), sampling_params["max_new_tokens"]
        if prompt >= context:
            raise RequestError(
                f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
            )
        if prompt + new > context:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {prompt + new} tokens: {prompt} tokens from the input messages and {new} tokens for the "
                "completion."
            )

    def _answer(self, generation: Generation, rid: str, prompt: int | None, return_logprob: bool) -> dict[str, Any]:
        """The response for a generation. `prompt` is the number of the prompt's tokens, including the tokens of images;
        None if the engine does not report this number."""
        tokens = list(generation.tokens)
        finish: dict[str, Any] = {"type": generation.finish_reason}
        match generation.finish_reason:
            case "stop":
                finish["matched"] = generation.matched
            case "length":
                finish["length"] = len(tokens)
            case "abort":
                finish["message"] = "Aborted"
        meta: dict[str, Any] = {
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
        return web.json_response(
            {
                "model_path": self._model_name,
                "tokenizer_path": self._model_name,
                "is_generation": True,
                "weight_version": self._weights.version,
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        """The server's arguments. slime compares some of them with those that its own server would get."""
        context = await self._engine.context_length()
        sizes = {f"{kind}_size": 1 for kind in ("tp", "dp", "pp", "ep", "moe_dp")}
        info = {
            "model_path": self._model_name,
            "served_model_name": self._model_name,
            "disaggregation_mode": "null",
            "enable_memory_saver": False,
            **sizes,
            **{name: value for name, value in self._server_args.items() if name not in _SECRETS},
            "context_length": context,
            "max_total_num_tokens": context,
            "version": "agentrl",
        }
        return web.json_response(info, dumps=partial(json.dumps, default=str))

    async def workers(self, request: web.Request) -> web.Response:
        """Return the list of workers that a router has, with this server as the only worker. So the same address serves
        as router and worker."""
        url = str(request.url.origin())
        worker = {"id": url, "url": url, "model_id": self._model_name, "worker_type": "regular", "is_healthy": True}
        return web.json_response({"workers": [worker], "total": 1})

    async def loads(self, request: web.Request) -> web.Response:
        admission = self._admission
        core = {
            "dp_rank": 0,
            "num_running_reqs": admission.running,
            "num_waiting_reqs": admission.waiting,
            "num_total_reqs": len(admission.tokens),
            "num_used_tokens": sum(admission.tokens.values()),
        }
        return web.json_response({"timestamp": time.time(), "version": "agentrl", "loads": [core]})

    async def load(self, request: web.Request) -> web.Response:
        admission = self._admission
        rank = {
            "dp_rank": 0,
            "num_reqs": len(admission.tokens),
            "num_waiting_reqs": admission.waiting,
            "num_tokens": sum(admission.tokens.values()),
        }
        return web.json_response([rank])

    async def abort_request(self, request: web.Request) -> web.Response:
        body = read_json(await request.read())
        rid = body.get("rid")
        if body.get("abort_all"):
            await self._admission.abort()
        elif isinstance(rid, str) and rid:
            await self._admission.abort(rid)
        else:
            raise RequestError('abort_request takes {"rid": "..."} or {"abort_all": true}')
        return web.Response()

    async def pause_generation(self, request: web.Request) -> web.Response:
        """Abort running requests, and hold new requests. slime sends this request before a weight update."""
        if (mode := read_json(await request.read()).get("mode", "abort")) != "abort":
            raise RequestError(f'pause_generation: mode {mode!r} is not supported here, only "abort"')
        await self._admission.pause()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        self._admission.proceed()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Tell whether no request runs, as SGLang does. An Engine itself drops cache entries of old weights."""
        if running := self._admission.running:
            return web.Response(status=400, text=f"Cache not flushed: {running} requests are running.\n")
        return web.Response(text="Cache flushed.\n")

    async def stop(self) -> None:
        """Abort all requests."""
        self._encoding.shutdown(wait=False, cancel_futures=True)
        await self._admission.abort()


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into SGLang's form. Status 400 blames the request, so clients do not repeat it. Status 500 blames the
    engine."""
    try:
        return await handler(request)
    except (RequestError, ConfigError) as exc:
        status, message = 400, str(exc)
    except StatusError as exc:
        status, message = exc.status, str(exc)
    except EngineError as exc:
        status, message = 500, str(exc)
    except web.HTTPRequestEntityTooLarge as exc:
        status, message = 413, exc.text or "the body is too large"
    except web.HTTPException:
        raise
    except Exception as exc:  # noqa: BLE001 - the boundary of a request: no error may harm other requests
        _log.exception("%s", request.path)
        status, message = 500, f"{type(exc).__name__}: {exc}"
    return web.json_response({"error": {"message": message}}, status=status)


async def _stream(request: web.Request, answer: Mapping[str, Any]) -> web.StreamResponse:
    """Respond with server-sent events. An Engine returns a whole response, so the stream has a single event."""
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
    host: str = "127.0.0.1",
    api_key: str | None = None,
    server_args: Mapping[str, Any] = _NO_ARGUMENTS,
    group_timeout: float = GROUP_TIMEOUT_S,
) -> web.Application:
    """The endpoints as an aiohttp application. The caller owns the engine, and must close it.

    Run the application with `handler_cancellation=True`, as `running_server` does. Otherwise the generation of a
    disconnected client runs on. Without `encode`, requests need input_ids. Without `decode`, the `text` of responses is
    empty. `host` is the server's own name; docs/serve.md explains the rules of access. `server_args` are arguments of
    SGLang's server to report in /server_info. `group_timeout` is the number of seconds that a trainer's process group
    may take to form, or to send a tensor.
    """
    server = _EngineServer(engine, model_name, encode, decode, server_args, group_timeout)
    access = guard(Access(host, api_key))
    app = web.Application(middlewares=[access, _errors], client_max_size=_BODY_BYTES)
    app.add_routes(server.routes())

    async def end(_: web.Application) -> None:
        await server.stop()

    # aiohttp waits for connections after this signal. So running requests end here, with the tokens they have.
    app.on_shutdown.append(end)
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
    api_key: str | None = None,
    server_args: Mapping[str, Any] = _NO_ARGUMENTS,
    group_timeout: float = GROUP_TIMEOUT_S,
) -> AsyncIterator[str]:
    """Serve while the context is open, and yield the server's URL. Port 0 picks a free port.

    At the end running generations are aborted, and their clients get the tokens sampled so far. Raises OSError for a
    port that is in use, and ConfigError for an invalid host or key.
    """
    app = create_app(
        engine,
        model_name=model_name,
        encode=encode,
        decode=decode,
        host=host,
        api_key=api_key,
        server_args=server_args,
        group_timeout=group_timeout,
    )
    if warning := exposure(host, api_key):
        _log.warning("%s", warning)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=5.0, access_log=None, logger=_http_log)
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
    api_key: str | None = None,
    server_args: Mapping[str, Any] = _NO_ARGUMENTS,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation. Needs the main thread. Calls `on_ready` with the URL."""
    serving = running_server(
        engine,
        host,
        port,
        model_name=model_name,
        encode=encode,
        decode=decode,
        api_key=api_key,
        server_args=server_args,
    )
    with stopping() as stop:
        async with serving as url:
            if on_ready is not None:
                on_ready(url)
            await stop.wait()
