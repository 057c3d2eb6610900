"""A retriever for tests whose answers the test makes up."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestServer


def passage(query, at=0):
    return {"id": f"{query}-{at}", "contents": f'"{query}"\npassage {at} on {query}'}


def truly(body, scores=True):
    """What a sound server answers."""
    found = [[passage(query, at) for at in range(body["topk"])] for query in body["queries"]]
    if scores:
        found = [[{"document": one, "score": 1.0 / (1 + at)} for at, one in enumerate(some)] for some in found]
    return {"result": found}


class Served:
    """Answers with what `answer(body)` gives: JSON, a web.Response, or a coroutine of one of these."""

    def __init__(self, answer=truly):
        self.answer, self.bodies = answer, []
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{any:.*}", self.handle)
        self.server = TestServer(app)

    async def handle(self, request):
        self.bodies.append(body := await request.json())
        found = self.answer(body)
        found = await found if asyncio.iscoroutine(found) else found
        return found if isinstance(found, web.Response) else web.json_response(found)

    async def __aenter__(self):
        await self.server.start_server()
        self.url = str(self.server.make_url("/retrieve"))
        return self

    async def __aexit__(self, *exc):
        await self.server.close()
