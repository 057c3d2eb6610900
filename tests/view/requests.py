"""Requests to the viewer's server."""

from __future__ import annotations

import aiohttp
import pytest

from agentrl.view.server import COOKIE, ViewServer
from agentrl.view.sources import open_source
from tests.view.conftest import made


@pytest.fixture
async def served(write):
    server = ViewServer([open_source(write(made().to_json()))])
    await server.start()
    yield server
    await server.close()


async def status(served, path, *, cookie=True, host=None, method="GET"):
    cookies = {COOKIE: served.token} if cookie else {}
    headers = {"Host": host} if host else {}
    async with (
        aiohttp.ClientSession(cookies=cookies, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
        http.request(method, f"http://127.0.0.1:{served.port}{path}", headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, answer.headers, await answer.text(errors="replace")
