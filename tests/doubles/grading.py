"""A grading service whose answers a test makes up."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.trajectory.model_output import ModelOutput

WROTE = ModelOutput.of_turns(["<think>b</think>Paris"], prompt="the capital of France?", label="Paris")


class Served:
    """A server that answers with what `answer(body)` says: JSON, a status, or a coroutine of one of these."""

    def __init__(self, answer):
        self.answer, self.bodies, self.headers = answer, [], []
        app = web.Application()
        app.router.add_post("/{any:.*}", self.handle)
        self.server = TestServer(app)

    async def handle(self, request):
        self.bodies.append(body := await request.json())
        self.headers.append(request.headers)
        found = self.answer(body)
        found = await found if asyncio.iscoroutine(found) else found
        return web.Response(status=found.value, text="why") if isinstance(found, Status) else web.json_response(found)

    async def __aenter__(self):
        await self.server.start_server()
        self.url = str(self.server.make_url("/score"))
        return self

    async def __aexit__(self, *exc):
        await self.server.close()


class Status:
    def __init__(self, value):
        self.value = value
