"""The way to a server: URLs, keys, certificates, patience, headers, event loops."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import re
import ssl
import threading
import time

import numpy as np
import pytest
import trustme
from aiohttp import web

from agentrl._util import backoff
from agentrl.engine import SGLangEngine
from agentrl.engine.sglang import client as client_module
from agentrl.errors import ConfigError, EngineError, RequestError
from tests.doubles.sglang import Fake, answer, client, for_ever
from tests.engine.inside import connections_of


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Backoff at a hundredth of its length, and nobody's key."""
    monkeypatch.setattr(backoff.jitter, "uniform", lambda low, high: 0.01 * high)
    monkeypatch.delenv("AGENTRL_API_KEY", raising=False)


# URLs and keys


async def test_the_password_of_a_url_is_sent_and_never_shown(caplog):
    fake = Fake(answer([7]), (400, {"error": {"message": "no"}}), for_ever)
    fake.workers = None
    async with fake.serve() as plain:
        url = plain.replace("//", "//me:top%40secret@")
        async with client(url, timeout=0.2) as engine:
            await engine.generate([1], {})
            with pytest.raises(EngineError) as refused:
                await engine.generate([1], {})
            with pytest.raises(EngineError) as late:
                await engine.generate([1], {})
    async with client(url, retry_s=0) as engine:
        with pytest.raises(EngineError) as gone:
            await engine.generate([1], {})
        with caplog.at_level(logging.INFO):
            await engine.abort()
    assert fake.headers[0]["Authorization"] == "Basic bWU6dG9wQHNlY3JldA=="
    assert engine.url == plain
    for said in (refused, late, gone):
        assert plain in str(said.value)
    for said in (*map(str, (refused.value, late.value, gone.value)), caplog.text):
        assert "secret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "htp://me:secret@host:1",
        "http://me:secret@host:99999",
        "http://me:secret@host:port",
        "http://me:secret@host/?token=1",
        "http://me:secret@[",
        "me:secret@host:30000",
        "http://me:se/cret@host:1",
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url):
    with pytest.raises(ConfigError, match="engine url") as said:
        SGLangEngine(url)
    assert "secret" not in str(said.value)
    assert "cret@" not in str(said.value)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_a_key_that_is_no_header_is_refused_unseen(key):
    with pytest.raises(ConfigError, match="api_key must be printable ASCII") as said:
        SGLangEngine("http://127.0.0.1:1", api_key=key)
    assert key not in str(said.value)


@pytest.mark.parametrize("given", [{"url": 30000}, {"url": None}, {"url": "http://127.0.0.1:1", "api_key": 1234}])
def test_what_a_configuration_reads_as_a_number_is_refused(given):
    with pytest.raises(ConfigError, match="must be text, not a"):
        SGLangEngine(**given)


def test_one_way_to_sign_in():
    with pytest.raises(ConfigError, match="give one of the two"):
        SGLangEngine("http://me:secret@127.0.0.1:1", api_key="k")


async def test_the_key_of_the_environment_goes_to_the_workers_as_well(monkeypatch):
    monkeypatch.setenv("AGENTRL_API_KEY", "k1")
    fake, seen = Fake(answer([7])), []

    async def abort(request):
        seen.append(request.headers["Authorization"])
        return web.Response()

    fake.abort = abort
    async with fake.serve() as url, client(url) as engine:
        await engine.generate([1], {})
        await engine.abort()
    assert [fake.headers[0]["Authorization"], *seen] == ["Bearer k1"] * 2


# TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def tls(authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_certificate_that_is_not_trusted_is_final_and_names_the_remedy(tls):
    fake = Fake(answer([7]))
    async with fake.serve(tls=tls) as url, client(url) as engine:
        with pytest.raises(EngineError, match=r"certificate is not trusted: .*ca=FILE.*SSL_CERT_FILE") as said:
            await engine.generate([1], {})
    assert "gave up" not in str(said.value)


@pytest.mark.parametrize("how", ["ca", "environment"])
async def test_an_authority_can_be_named(authority, tls, how, tmp_path, monkeypatch):
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    if how == "environment":
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    fake = Fake(answer([7]))
    async with fake.serve(tls=tls) as url, client(url, ca=file if how == "ca" else None) as engine:
        assert (await engine.generate([1], {})).tokens == [7]


async def test_https_to_a_server_of_http_is_final():
    async with Fake().serve() as url, client(url.replace("http://", "https://")) as engine:
        with pytest.raises(EngineError, match=r"no TLS connection: .*does the server speak https") as said:
            await engine.generate([1], {})
    assert "gave up" not in str(said.value)


@pytest.mark.parametrize("name", ["missing.pem", "empty.pem"])
def test_a_file_of_authorities_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ConfigError, match=rf"ca '.*{name}' is not a file of certificates"):
        SGLangEngine("https://127.0.0.1:1", ca=tmp_path / name)


# Patience


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        (" 7 ", 7, 7),
        (30.0, 10, 30),
        (-30.0, 0, 0.1),
        ("86400", 60, 60),
        ("-5", 0, 0.1),
        ("soon", 0, 0.1),
        ("9" * 400, 60, 60),
        ("Mon, 99 Foo 9999 99:99:99 GMT", 0, 0.1),
        ("Mon, 01 Jan 99999999999999 00:00:00 GMT", 0, 0.1),
    ],
)
async def test_retry_after_is_heeded(monkeypatch, header, least, most):
    waited = []

    async def pause(self, seconds):
        waited.append(seconds)

    async def busy(_):
        date = isinstance(header, float)
        said = email.utils.formatdate(time.time() + header, usegmt=True) if date else header
        return web.Response(status=503, headers={"Retry-After": said})

    monkeypatch.setattr(client_module._Request, "pause", pause)
    fake = Fake(busy, answer([7]))
    async with fake.serve() as url, client(url) as engine:
        await engine.generate([1], {})
    assert len(waited) == 1
    assert least <= waited[0] <= most


async def test_an_abort_does_not_wait_for_the_patience_of_a_retry():
    asked = asyncio.Event()

    async def busy(_):
        asked.set()
        return web.Response(status=429, headers={"Retry-After": "50"})

    fake = Fake(busy)
    async with fake.serve() as url, client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}, rid="r"))
        await asked.wait()
        async with asyncio.timeout(10):
            await engine.abort("r")
            assert (await running).finish_reason == "abort"
    assert len(fake.bodies) == 1


async def test_a_redirection_is_final_and_names_where_to():
    async def moved(_):
        return web.Response(status=307, headers={"Location": "https://me:secret@elsewhere/generate"})

    fake = Fake(moved)
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(EngineError, match=r"HTTP 307: .*moved to https://elsewhere/generate; give that as") as said:
            await engine.generate([1], {})
    assert "secret" not in str(said.value)


# Requests at fault


async def test_a_refused_request_is_one_at_fault_and_names_the_likely_cause():
    fake = Fake(
        (400, {"error": {"message": "token id 9 is out of vocabulary"}}),
        (400, {"error": {"message": "outside the vocabulary: tokenizer mismatch?"}}),
        (401, {"error": {"message": "no key"}}),
    )
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(RequestError, match=r"out of vocabulary; tokenizer mismatch\?$"):
            await engine.generate([9], {})
        with pytest.raises(RequestError, match=r"outside the vocabulary: tokenizer mismatch\?$"):
            await engine.generate([9], {})
        with pytest.raises(EngineError, match="HTTP 401: no key") as said:
            await engine.generate([9], {})
    assert not isinstance(said.value, RequestError)


@pytest.mark.parametrize("wrong", [100, -1, 2**31 - 1])
async def test_a_prompt_of_another_tokenizer_is_not_even_sent(wrong):
    """A real SGLang worker does not look, and may die of it."""
    fake = Fake(answer([7]), answer([7]))
    async with fake.serve() as url, client(url, vocab_size=100) as engine:
        await engine.generate([1, 99], {}, session_id="s")
        with pytest.raises(RequestError, match=rf"id {wrong} is outside the vocabulary of 100: tokenizer mismatch\?"):
            await engine.generate([1, 99, wrong], {}, session_id="s")
        await engine.generate([1, 99, 5], {}, session_id="s")
    assert [body["input_ids"] for body in fake.bodies] == [[1, 99], [1, 99, 5]]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_k": 2**63}, "top_k must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": float("inf")}, "temperature must be"),
        ({"top_p": float("nan")}, "top_p must be"),
        ({"stop": ["fine", "\ud800"]}, "stop holds a lone surrogate"),
        ({"stop": "\ud800"}, "stop holds a lone surrogate"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be"),
        ({"stop_token_ids": [2**40]}, "stop_token_ids must be"),
        ({"sampling_seed": 2**63}, "sampling_seed must be"),
    ],
)
async def test_parameters_that_no_engine_can_obey_are_not_even_sent(params, message):
    """A real SGLang worker dies of top_k = 2**63, and all of its requests with it."""
    async with client("http://127.0.0.1:1", retry_s=0) as engine:
        with pytest.raises(RequestError, match=message):
            await engine.generate([1], params)


async def test_parameters_that_another_engine_may_know_are_sent():
    fake = Fake(answer([7]))
    params = {"min_p": 0.1, "regex": "a+", "sampling_seed": -5, "temperature": None, "stop": None, "top_k": 1 << 30}
    async with fake.serve() as url, client(url) as engine:
        await engine.generate([1], params)
    assert params.items() <= fake.bodies[0]["sampling_params"].items()


async def test_both_requests_of_one_rid_are_aborted():
    fake, told = Fake(for_ever, for_ever), asyncio.Event()

    async def abort(request):
        fake.aborts.append((await request.json())["rid"])
        if len(set(fake.aborts)) == 2:
            told.set()
        return web.Response()

    fake.abort = abort
    async with fake.serve() as url, client(url) as engine:
        running = []
        for n in range(2):
            fake.running.clear()
            running.append(asyncio.create_task(engine.generate([n], {}, rid="r")))
            await fake.running.wait()
        aborting = asyncio.create_task(engine.abort("r"))
        async with asyncio.timeout(10):
            await told.wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await aborting
    assert set(fake.aborts) == {body["rid"] for body in fake.bodies}


async def test_a_finished_request_leaves_its_namesake_abortable():
    release = asyncio.Event()

    async def wait(_):
        await release.wait()
        return web.json_response(answer([7], finish={"type": "abort"}))

    fake = Fake(answer([7]), wait)

    async def abort(request):
        fake.aborts.append(await request.json())
        release.set()
        return web.Response()

    fake.abort = abort
    async with fake.serve() as url, client(url) as engine:
        first = asyncio.create_task(engine.generate([1], {}, rid="r"))
        second = asyncio.create_task(engine.generate([2], {}, rid="r"))
        done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(10):
            await engine.abort("r")
            await asyncio.gather(first, second)
    assert len(done) == 1
    assert len(fake.aborts) == 1


# What goes into a request


@pytest.mark.parametrize("session_id", ["a\nb", "a\r\nX-Evil: 1", "é", "\ud800", "\x00", " a ", "%0A", "x" * 20_000])
async def test_any_session_id_is_a_routing_key(session_id):
    fake = Fake(answer([7]), answer([7]), answer([7]))
    async with fake.serve() as url, client(url) as engine:
        for name in (session_id, session_id, "another"):
            await engine.generate([1], {}, session_id=name)
    one, again, another = [headers["X-SMG-Routing-Key"] for headers in fake.headers]
    assert one == again != another
    assert re.fullmatch(r"[\x21-\x7e]{1,1024}", one)
    assert "X-Evil" not in fake.headers[0]


async def test_an_ordinary_session_id_is_sent_as_it_is():
    fake = Fake(answer([7]))
    async with fake.serve() as url, client(url) as engine:
        await engine.generate([1], {}, session_id="0b1e-4f_~.:/run#7")
    assert fake.headers[0]["X-SMG-Routing-Key"] == "0b1e-4f_~.:/run#7"


@pytest.mark.parametrize("ids", [np.array([1, 2, 3]), [np.int64(1), 2, np.int32(3)], (True, 2, 3)])
async def test_integers_of_any_kind_are_token_ids(ids):
    fake = Fake(answer([7]), answer([7]))
    async with fake.serve() as url, client(url) as engine:
        for _ in range(2):
            await engine.generate(ids, {}, session_id="s")
    assert [body["input_ids"] for body in fake.bodies] == [[1, 2, 3]] * 2
    assert all(raw.startswith('{"input_ids": [1,2,3], ') for raw in fake.raw)


@pytest.mark.parametrize(
    ("ids", "params", "message"),
    [
        ([1, "2"], {}, r"input_ids\[1\] is '2', not a token id"),
        ([1, 2.0], {}, r"input_ids\[1\] is 2\.0, not a token id"),
        ([None], {}, r"input_ids\[0\] is None, not a token id"),
        ([1, -(2**40)], {}, r"input_ids\[1\] is -1099511627776, not a token id"),
        ([1, 2**31], {}, r"input_ids\[1\] is 2147483648, not a token id"),
        ([1], {"temperature": np.float32(1)}, "sampling_params or extra cannot be written as JSON"),
    ],
)
async def test_what_is_no_json_is_the_callers_mistake(ids, params, message):
    async with client("http://127.0.0.1:1") as engine:
        with pytest.raises(ConfigError, match=message):
            await engine.generate(ids, params)


# Event loops


class OtherLoop:
    """An event loop in a thread of its own, which can be stopped and go on."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.start()

    def start(self):
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def run(self, coroutine):
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


async def test_close_when_another_loop_has_stopped():
    fake = Fake(answer([7]))
    async with fake.serve() as url:
        other = OtherLoop()
        engine = SGLangEngine(url)
        await other.run(engine.generate([1], {}))
        (session,) = connections_of(engine).sessions.values()
        await asyncio.to_thread(other.stop)
        await engine.close()
        await engine.close()
        other.start()  # which closes its session now
        await other.run(asyncio.sleep(0.05))
        assert session.closed
        await asyncio.to_thread(other.stop)
        other.loop.close()


async def test_close_when_another_loop_runs():
    fake = Fake(answer([7]))
    async with fake.serve() as url:
        other = OtherLoop()
        engine = SGLangEngine(url)
        await other.run(engine.generate([1], {}))
        (session,) = connections_of(engine).sessions.values()
        await engine.close()
        assert session.closed
        await asyncio.to_thread(other.stop)
        other.loop.close()


async def test_close_when_another_loop_is_closed():
    fake = Fake(answer([7]))
    async with fake.serve() as url:
        engine = SGLangEngine(url)

        async def once():
            await engine.generate([1], {})
            # The loop's socket goes with it, so that no other warning hides ours.
            await connections_of(engine).sessions[asyncio.get_running_loop()].connector.close()

        await asyncio.to_thread(lambda: asyncio.run(once()))
        (session,) = connections_of(engine).sessions.values()
        await engine.close()
        assert session.closed


async def test_an_engine_closes_with_its_context():
    async with Fake(answer([7])).serve() as url, SGLangEngine(url) as engine:
        await engine.generate([1], {})
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate([1], {})
