"""The server of a corpus: Search-R1's contract, bad requests, its cache, its end."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import aiohttp
import pytest

pytest.importorskip("tantivy", reason="tantivy is not installed")

from agentrl.errors import ConfigError, InfraError
from agentrl_envs.search_r1.retrieval import HTTPRetriever, server
from agentrl_envs.search_r1.retrieval.building import open_index
from agentrl_envs.search_r1.retrieval.server import bind, running_server

TOWNS = ["Lyon", "Nice", "Lille", "Metz", "Brest", "Tours", "Nantes"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "towns.jsonl"
    rows = [{"id": str(at), "contents": f'"{town}"\n{town} is a town of France'} for at, town in enumerate(TOWNS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_index(path)


@asynccontextmanager
async def serving(index, **options):
    with bind("127.0.0.1", 0) as listening:
        async with running_server(index, listening, **options) as url, aiohttp.ClientSession() as session:
            yield session, url


async def ask(session, url, body):
    async with session.post(url, data=body if isinstance(body, bytes) else json.dumps(body)) as response:
        return response.status, await response.json()


async def test_it_speaks_search_r1s_contract_in_both_shapes(index):
    async with serving(index, topk=2) as (session, url):
        assert url.endswith("/retrieve")
        status, answer = await ask(session, url, {"queries": ["Nice", "town", "unheard"], "topk": None})
        assert status == 200
        assert [len(found) for found in answer["result"]] == [1, 2, 0]
        assert answer["result"][0] == [{"id": "1", "contents": '"Nice"\nNice is a town of France'}]
        body = {"queries": ["Nice", "town"], "topk": 5, "return_scores": True}
        _, answer = await ask(session, url, body)
        assert [len(found) for found in answer["result"]] == [1, 5]
        assert answer["result"][0][0]["document"] == {"id": "1", "contents": '"Nice"\nNice is a town of France'}
        assert answer["result"][0][0]["score"] > 0
        assert (await ask(session, url, {"queries": ["\ud800 Nice \0"]}))[1]["result"][0][0]["id"] == "1"
        assert await ask(session, url, {"queries": []}) == (200, {"result": []})
        assert len((await ask(session, url, {"queries": ["town"], "topk": 0}))[1]["result"][0]) == 2


async def test_what_is_asked_again_comes_from_the_cache_and_health_counts(index):
    async with serving(index) as (session, url):
        first = await ask(session, url, {"queries": ["Metz", "Metz", "Brest"]})
        assert await ask(session, url, {"queries": ["Metz", "Metz", "Brest"]}) == first
        async with session.get(url.replace("/retrieve", "/health")) as response:
            health = await response.json()
    folder = str(index.folder)
    assert health == {"status": "ok", "documents": 7, "index": folder, "topk": 3, "queries": 6, "cached": 3 + 1}


def test_the_cache_forgets_what_was_not_asked_for_longest():
    cache = server.AnswerCache(3 * 310)
    for at in range(3):
        cache.put((str(at), 1, False), b"x" * 100)
    assert cache.get(("0", 1, False)) is not None
    cache.put(("3", 1, False), b"x" * 100)
    assert [at for at in range(4) if cache.get((str(at), 1, False))] == [0, 2, 3]
    cache.put(("all", 1, False), b"x" * 1000)  # more than there is room for
    assert not cache.answers
    assert cache.bytes == 0


BAD = {
    "no JSON": (b'{"queries": ["a', "the body is not JSON"),
    "no UTF-8": (b'{"queries": ["\xff"]}', "the body is not JSON"),
    "nested": (b"[" * 100_000, "the body is not JSON"),
    "no object": (["a"], "the body is not a JSON object"),
    "no queries": ({"query": "a"}, "queries is missing"),
    "one query": ({"queries": "a"}, "queries must be a valid list"),
    "no text": ({"queries": ["a", 1]}, "queries.1 must be a valid string"),
    "too many": ({"queries": [""] * 8193}, "queries must have at most 8192 items"),
    "negative": ({"queries": ["a"], "topk": -1}, "topk must be greater than or equal to 0"),
    "too large": ({"queries": ["a"], "topk": 1001}, "topk must be less than or equal to 1000"),
    "no number": ({"queries": ["a"], "topk": "some"}, "topk must be a valid integer"),
}


@pytest.mark.parametrize(("body", "error"), BAD.values(), ids=BAD)
async def test_a_bad_request_is_told_what_is_wrong(index, body, error):
    async with serving(index) as (session, url):
        status, answer = await ask(session, url, body)
    assert status == 400
    assert answer["error"].startswith(error)
    assert answer["error"].endswith('write {"queries": ["..."], "topk": 3, "return_scores": true}')


async def test_other_paths_and_large_bodies_are_refused(index, monkeypatch):
    monkeypatch.setattr(server, "BODY_BYTES", 1000)
    async with serving(index) as (session, url):
        for method, path, status in [("GET", "/retrieve", 405), ("POST", "/search", 404)]:
            async with session.request(method, url.replace("/retrieve", path)) as response:
                assert response.status == status
                assert "POST /retrieve and GET /health" in (await response.json())["error"]
        status, answer = await ask(session, url, {"queries": ["x" * 2000]})
    assert (status, answer) == (413, {"error": "the body has more than 1000 bytes; send fewer queries at once"})


async def test_a_search_that_breaks_is_a_500_and_costs_no_other_request(index, monkeypatch):
    real = index.search

    def search(query, topk):
        if query == "bad":
            raise ValueError("a damaged file")
        return real(query, topk)

    monkeypatch.setattr(index, "search", search)
    async with serving(index) as (session, url):
        bad, good = await asyncio.gather(*[ask(session, url, {"queries": [query]}) for query in ("bad", "Metz")])
        assert bad == (500, {"error": "ValueError: a damaged file"})
        assert good[1]["result"][0][0]["id"] == "3"
        retriever = HTTPRetriever(url, timeout=0.5)
        found = await asyncio.gather(retriever.search("bad", 1), retriever.search("Lyon", 1), return_exceptions=True)
    assert isinstance(found[0], InfraError)
    assert [document.id for document in found[1]] == ["0"]


async def test_requests_under_way_are_answered_before_it_ends(index, monkeypatch):
    loop, searching, going_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    real = index.search

    def slowly(query, topk):
        loop.call_soon_threadsafe(searching.set)
        going_on.wait(10)
        return real(query, topk)

    monkeypatch.setattr(index, "search", slowly)
    async with aiohttp.ClientSession() as session:
        with bind("127.0.0.1", 0) as listening:
            async with running_server(index, listening) as url:
                asked = asyncio.create_task(ask(session, url, {"queries": ["Lyon"]}))
                await searching.wait()
                loop.call_later(0.05, going_on.set)
        status, answer = await asked
        assert (status, answer["result"][0][0]["id"]) == (200, "0")
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask(session, url, {"queries": ["Lyon"]})


def test_an_address_that_cannot_be_had_is_named():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}: .*; choose another --port"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"cannot listen at 203.0.113.1:0"):
        bind("203.0.113.1", 0)


async def test_the_longest_queries_of_a_full_batch_fit_into_a_request(index):
    async with serving(index) as (_, url):
        retriever = HTTPRetriever(url)
        queries = [f"{town} \U0001f600" + "\U0001f600" * 20_000 for town in TOWNS * 9 + TOWNS[:1]]
        found = await asyncio.gather(*[retriever.search(query, 1) for query in queries])
    assert [one[0].id for one in found] == [str(at % 7) for at in range(64)]
