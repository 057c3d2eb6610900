"""The retriever's client against servers that misbehave: no query is answered with an empty or a wrong result."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from agentrl.errors import ConfigError, InfraError
from agentrl_envs.search_r1.retrieval import Document, HTTPRetriever, open_retriever, shown
from tests.envs.doubles.retriever import Served, passage, truly


def found_for(query, topk=3):
    return [Document(one["id"], one["contents"]) for one in (passage(query, at) for at in range(topk))]


def bare(documents):
    return [Document(one.id, one.contents) for one in documents]


def test_a_document_is_shown_as_in_the_paper():
    one, two = Document("1", '"The Who"\na band\nof four'), Document("2", "no text")
    assert (one.title, one.text, two.title, two.text) == ('"The Who"', "a band\nof four", "no text", "")
    assert shown([one, two]) == 'Doc 1(Title: "The Who") a band\nof four\nDoc 2(Title: no text) \n'
    assert shown([]) == ""


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
async def test_both_shapes_keep_the_order_of_any_number_of_queries(count, scores):
    queries = [f"q{at}" for at in range(count)]
    async with Served(lambda body: truly(body, scores)) as served:
        retriever = HTTPRetriever(served.url)
        found = await asyncio.gather(*[retriever.search(query, 3) for query in queries])
    assert [bare(documents) for documents in found] == [found_for(query) for query in queries]
    assert [one.score for one in found[0]] == ([1.0, 1 / 2, 1 / 3] if scores else [None] * 3)
    assert served.bodies == [{"queries": queries, "topk": 3, "return_scores": True}]


async def test_queries_asked_together_share_requests_of_up_to_64():
    async with Served() as served:
        retriever = open_retriever(served.url)
        found = await asyncio.gather(*[retriever.search(f"q{at}", 1 + at % 2) for at in range(300)])
    assert [bare(one) for one in found] == [found_for(f"q{at}", 1 + at % 2) for at in range(300)]
    assert sum(len(body["queries"]) for body in served.bodies) == 300
    assert max(len(body["queries"]) for body in served.bodies) == 64
    assert len(served.bodies) == 6


@pytest.mark.parametrize("url", ["http://h:80", "http://h:80/", "http://h:80/retrieve"])
def test_the_path_may_be_left_out(url):
    assert HTTPRetriever(url).url == "http://h:80/retrieve"
    assert HTTPRetriever("https://h/other").url == "https://h/other"


@pytest.mark.parametrize(
    "where", ["http://", "http://h:port", "https://h:99999", "localhost:8000", "no/such.jsonl", ""]
)
def test_what_is_neither_a_url_nor_a_file_is_refused(where):
    with pytest.raises(ConfigError, match=r"write http://host:port/retrieve|neither a URL"):
        open_retriever(where)


async def test_an_empty_result_is_believed_where_the_server_says_so():
    async with Served(lambda body: {"result": [[] for _ in body["queries"]]}) as served:
        assert await HTTPRetriever(served.url).search("q", 3) == []


WRONG = {
    "no mapping": [],
    "null": None,
    "no result": {"results": []},
    "a result that is no list": {"result": "none"},
    "too few": {"result": []},
    "too many": {"result": [[], []]},
    "a mapping for a list": {"result": [{"document": passage("q")}]},
    "a passage that is text": {"result": [["Paris"]]},
    "no contents": {"result": [[{"document": {"id": "1"}, "score": 1.0}]]},
    "contents that are no text": {"result": [[{"id": "1", "contents": None}]]},
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_an_answer_of_another_shape_is_a_failure_and_no_empty_result(answer):
    async with Served(lambda body: answer) as served:
        with pytest.raises(InfraError, match="gave no answer of a retriever"):
            await HTTPRetriever(served.url, timeout=5).search("q", 3)
    assert len(served.bodies) == 1


BROKEN = {
    "html": lambda: web.Response(text="<html>502 Bad Gateway</html>", content_type="text/html"),
    "truncated": lambda: web.Response(text='{"result": [[{"id": "1", "cont', content_type="application/json"),
    "not UTF-8": lambda: web.Response(body=b'{"result": "\xff"}', content_type="application/json"),
    "nested too deep": lambda: web.Response(text="[" * 200_000, content_type="application/json"),
    "nothing": web.Response,
    "500": lambda: web.Response(status=500, text="a traceback"),
    "503": lambda: web.Response(status=503),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_json_is_tried_again_and_then_a_failure(broken):
    async with Served(lambda body: broken()) as served:
        with pytest.raises(InfraError, match=r"did not answer within 0\.4 s; InfraError: .* the last error"):
            await HTTPRetriever(served.url, timeout=0.4).search("q", 3)
        assert len(served.bodies) > 1
        served.answer = truly
        assert bare(await HTTPRetriever(served.url).search("q", 3)) == found_for("q")


async def test_a_server_that_recovers_before_the_deadline_is_answered_from():
    answers = iter([BROKEN["503"](), BROKEN["html"]()])
    async with Served(lambda body: next(answers, None) or truly(body)) as served:
        assert bare(await HTTPRetriever(served.url).search("q", 2)) == found_for("q", 2)
    assert len(served.bodies) == 3


async def test_a_server_that_hangs_costs_its_deadline_and_one_that_is_down_too():
    release = asyncio.Event()

    async def hang(body):
        await release.wait()
        return truly(body)

    async with Served(hang) as served:
        with pytest.raises(InfraError, match=r"did not answer within 0\.2 s; no answer yet"):
            await HTTPRetriever(served.url, timeout=0.2).search("q", 3)
        release.set()
    with pytest.raises(InfraError, match=r"did not answer within 0\.2 s; .*nothing listens at"):
        await HTTPRetriever(served.url, timeout=0.2).search("q", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422])
async def test_a_request_that_is_always_refused_ends_the_run(status):
    async with Served(lambda body: web.Response(status=status, text="why")) as served:
        with pytest.raises(ConfigError, match=f"HTTP {status}: why; correct its address"):
            await HTTPRetriever(served.url).search("q", 3)
    with pytest.raises(ConfigError, match="topk is 0"):
        await HTTPRetriever(served.url).search("q", 0)


@pytest.mark.thorough
@pytest.mark.parametrize("status", [422, 500])
async def test_a_query_that_breaks_the_server_costs_its_neighbours_nothing(status):
    def answer(body):
        return web.Response(status=status, text="bad") if "bad" in body["queries"] else truly(body)

    async with Served(answer) as served:
        retriever = HTTPRetriever(served.url, timeout=1.0)
        queries = ["a", "bad", "b", "c"]
        found = await asyncio.gather(*[retriever.search(query, 1) for query in queries], return_exceptions=True)
    assert isinstance(found.pop(1), InfraError if status == 500 else ConfigError)
    assert list(map(bare, found)) == [found_for(query, 1) for query in "abc"]


async def test_one_that_is_cancelled_harms_nobody():
    asked, release = asyncio.Event(), asyncio.Event()

    async def slowly(body):
        asked.set()
        await release.wait()
        return truly(body)

    async with Served(slowly) as served:
        retriever = HTTPRetriever(served.url)
        before, during, left = (asyncio.create_task(retriever.search(query, 1)) for query in "abc")
        await asyncio.sleep(0)
        before.cancel()  # it waits for others
        await asked.wait()
        during.cancel()  # it is under way
        await asyncio.sleep(0)
        release.set()
        assert bare(await left) == found_for("c", 1)
        assert before.cancelled()
        assert during.cancelled()
    assert [body["queries"] for body in served.bodies] == [["b", "c"]]


async def test_queries_that_no_server_can_read_are_made_readable():
    async with Served() as served:
        retriever = HTTPRetriever(served.url)
        await asyncio.gather(*[retriever.search(query, 1) for query in ("a\ud800b", "a\0b", "", "x" * 1_000_000)])
    assert served.bodies[0]["queries"] == ["a\ufffdb", "a\0b", "", "x" * 20_000]


async def test_odd_ids_and_scores_are_read():
    rows = [
        {"document": {"contents": "a\ud800"}, "score": "high"},
        {"document": {"id": 7, "contents": "b"}, "score": 10**400},
        {"document": {"id": "8", "contents": "c", "more": 1}, "score": True},
        {"document": {"id": "9", "contents": "d"}, "score": 2},
    ]
    async with Served(lambda body: {"result": [rows]}) as served:
        found = await HTTPRetriever(served.url).search("q", 9)
        assert len(await HTTPRetriever(served.url).search("q", 2)) == 2  # a server that knows no topk
    assert found == [Document("", "a\ufffd"), Document("7", "b"), Document("8", "c"), Document("9", "d", 2.0)]


async def test_closing_ends_the_searches_that_wait():
    arrived, release = asyncio.Event(), asyncio.Event()

    async def hang(body):
        arrived.set()
        await release.wait()
        return truly(body)

    async with Served(hang) as served:
        async with HTTPRetriever(served.url) as retriever:
            waiting = asyncio.create_task(retriever.search("q", 1))
            await arrived.wait()
            queued = asyncio.create_task(retriever.search("r", 1))
            await asyncio.sleep(0)
        for task in (waiting, queued):
            with pytest.raises(InfraError, match="was closed during the search"):
                await task
        release.set()


async def test_a_bug_reaches_the_caller_at_once(monkeypatch):
    async def broken(self, body):
        raise KeyError("a bug")

    monkeypatch.setattr("agentrl._util.http.HttpService.post", broken)
    with pytest.raises(KeyError, match="a bug"):
        await HTTPRetriever("http://127.0.0.1:1").search("q", 1)


async def test_connections_are_kept_while_it_is_open(monkeypatch):
    made, real = [], asyncio.get_running_loop().create_connection
    monkeypatch.setattr(
        asyncio.get_running_loop(), "create_connection", lambda *args, **given: made.append(1) or real(*args, **given)
    )
    async with Served() as served:
        async with HTTPRetriever(served.url) as retriever:
            for _ in range(5):
                assert await retriever.search("q", 1)
        assert len(made) == 1
