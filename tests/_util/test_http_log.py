"""A request that is not HTTP/1.1 at each of our servers."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from yarl import URL

from agentrl.engine import ScriptedEngine
from agentrl.engine.sglang.server import running_server
from agentrl.gateway.serving.http import WireServer
from agentrl.view.server import ViewServer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@asynccontextmanager
async def engine():
    async with running_server(ScriptedEngine([], None)) as url:
        yield url


@asynccontextmanager
async def view():
    server = ViewServer([])
    await server.start()
    yield server.link
    await server.close()


@asynccontextmanager
async def gateway():
    server = WireServer(lambda key, request: None, "model")
    yield f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    await server.close()


@asynccontextmanager
async def search():
    retrieval = pytest.importorskip("agentrl_envs.search_r1.retrieval.server")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with retrieval.running_server(SimpleNamespace(), listening) as url:
            yield url


@pytest.mark.parametrize("serve", [engine, view, gateway, search])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
async def test_the_preface_of_http2_is_no_error(serve, level, caplog):
    caplog.set_level(level)
    async with serve() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(PREFACE)
        reply = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert reply.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    records = [record for record in caplog.records if record.name.startswith("agentrl") or record.levelno > level]
    logged = level == logging.DEBUG and serve is not gateway  # the gateway logs nothing of strangers
    assert [record.levelname for record in records] == ["DEBUG"] * logged
    for record in records:
        assert "Pause on PRI/Upgrade" in record.getMessage()
        assert "\n" not in record.getMessage()
        assert record.exc_info is None


async def test_other_errors_of_a_server_stay_whole(caplog):
    from agentrl._util.http_log import server_log

    try:
        raise ValueError("a bug")
    except ValueError:
        server_log("agentrl.tests.http").exception("Error handling request")
    (record,) = caplog.records
    assert (record.levelname, record.exc_info[0]) == ("ERROR", ValueError)
