"""A server in SGLang's place whose every reply is written by the test."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager

from aiohttp import web

from agentrl.engine import SGLangEngine


def answer(tokens, *, finish=None, log_probs=None, **meta):
    scored = [[lp, token, None] for lp, token in zip(log_probs or [-0.5] * len(tokens), tokens, strict=True)]
    meta = {"finish_reason": finish or {"type": "stop", "matched": 7}, "output_token_logprobs": scored, **meta}
    return {"text": "", "meta_info": meta}


COMMANDS = (
    "/update_weights_from_disk",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/flush_cache",
)


class Fake:
    """A server whose every reply is written by the test: a list of handlers, and the requests that came."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.raw = []
        self.bodies = []
        self.headers = []
        self.aborts = []
        self.info = {"context_length": 100}
        self.about = {"model_path": "served", "served_model_name": "served"}
        self.workers = None
        self.commands = []
        """What a trainer sent, in order: the path and the body."""
        self.refusals = {}
        """For a path, replies to give instead, each once."""
        self.running = asyncio.Event()

    async def generate(self, request):
        self.raw.append(await request.text())
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        self.running.set()
        reply = self.replies.pop(0)
        if callable(reply):
            return await reply(request)
        status, body = reply if isinstance(reply, tuple) else (200, reply)
        return web.json_response(body, status=status)

    async def abort(self, request):
        self.aborts.append(await request.json())
        return web.Response()

    async def get_workers(self, request):
        if self.workers is None:
            raise web.HTTPNotFound
        return web.json_response({"workers": [{"url": url} for url in self.workers]})

    async def server_info(self, request):
        if self.info is None:
            raise web.HTTPNotFound
        return web.json_response(self.info)

    async def model_info(self, request):
        return web.json_response(self.about)

    async def command(self, request):
        """Weights and memory. What is refused was not done, so it is not among the commands."""
        body = json.loads(await request.text() or "{}")
        if replies := self.refusals.get(request.path):
            status, answer = replies.pop(0)
            return web.json_response(answer, status=status)
        for name in ("model_path", "lora_path"):
            if name in body:
                body["files"] = sorted(os.listdir(body[name]))
        self.commands.append((request.path, body))
        return web.json_response({"success": True, "message": "done"})

    @asynccontextmanager
    async def serve(self, *, router=False, tls=None, port=0):
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/workers", self.get_workers)
        if not router:
            app.router.add_post("/abort_request", self.abort)
            app.router.add_get("/server_info", self.server_info)
            app.router.add_get("/model_info", self.model_info)
            app.router.add_get("/health", self.model_info)
            for path in COMMANDS:
                app.router.add_post(path, self.command)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@asynccontextmanager
async def client(url, **kwargs):
    engine = SGLangEngine(url, **kwargs)
    try:
        yield engine
    finally:
        await engine.close()


async def for_ever(request):
    await asyncio.sleep(3600)


async def reset(request):
    request.transport.abort()
    return web.Response()


async def reset_in_the_middle(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"text": "half')
    request.transport.abort()
    return response
