"""Who may use the server: docs/serve.md says what these tests hold."""

from __future__ import annotations

import json
import logging
import socket

import aiohttp
import pytest

from agentrl.engine import ScriptedEngine, SGLangEngine
from agentrl.engine.sglang.access import exposure
from agentrl.engine.sglang.server import running_server
from agentrl.errors import ConfigError, EngineError

BODY = {"input_ids": [1]}


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def engine(chars):
    return ScriptedEngine(lambda _: "hi", chars)


async def ask(http, url, headers=None, *, method="POST", body=BODY):
    async with http.request(method, url, json=body if method == "POST" else None, headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text)["error"]["message"] if response.status >= 400 else text


# The key


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "secret", "Basic c2VjcmV0", "Bearer sécret"])
async def test_without_the_key_nothing_but_health_is_answered(http, engine, header):
    headers = {"Authorization": header} if header else {}
    async with running_server(engine, api_key="secret") as url:
        for path in ("/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk"):
            status, said = await ask(http, url + path, headers)
            assert (status, "api key" in said.lower(), "secret" in said) == (401, True, False)
        for path in ("/model_info", "/server_info", "/workers", "/v1/loads", "/flush_cache"):
            assert (await ask(http, url + path, headers, method="GET"))[0] == 401
        for path in ("/health", "/health_generate"):
            assert (await ask(http, url + path, headers, method="GET"))[0] == 200
    assert engine.requests == []


async def test_the_key_opens_and_the_client_sends_it_everywhere(http, engine, caplog, monkeypatch):
    async with running_server(engine, api_key="secret") as url:
        status, _ = await ask(http, f"{url}/generate", {"Authorization": "Bearer secret"})
        assert status == 200
        async with SGLangEngine(url, api_key="secret") as client:
            assert (await client.generate([1], {})).finish_reason == "stop"
            assert await client.context_length() > 0
            with caplog.at_level(logging.WARNING):
                await client.abort()
        assert caplog.text == ""
        monkeypatch.delenv("AGENTRL_API_KEY", raising=False)
        async with SGLangEngine(url) as client:
            with pytest.raises(EngineError, match=r"HTTP 401: .*AGENTRL_API_KEY"):
                await client.generate([1], {})


@pytest.mark.parametrize("key", ["", "two words", "schlüssel"])
async def test_a_key_that_no_header_can_carry_is_refused(engine, key):
    with pytest.raises(ConfigError, match="API key"):
        async with running_server(engine, api_key=key):
            pass


# Web pages


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
async def test_a_web_page_of_another_origin_is_refused(http, engine, origin):
    async with running_server(engine) as url:
        for method, path in (("POST", "/generate"), ("POST", "/update_weights_from_disk"), ("GET", "/model_info")):
            status, said = await ask(http, url + path, {"Origin": origin}, method=method)
            assert (status, "web page" in said) == (403, True)
    assert engine.requests == []


async def test_a_browser_that_says_cross_site_is_refused_without_an_origin_too(http, engine):
    async with running_server(engine) as url:
        for site, expected in (("cross-site", 403), ("same-site", 403), ("none", 200), ("same-origin", 200)):
            status, _ = await ask(http, f"{url}/flush_cache", {"Sec-Fetch-Site": site}, method="GET")
            assert status == expected


async def test_the_servers_own_origin_is_welcome(http, engine):
    async with running_server(engine) as url:
        assert (await ask(http, f"{url}/generate", {"Origin": url}))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:30000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
        ("[::1", 403),
        ("localhost:30000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("10.1.2.3:30000", 200),
        ("[::1]:30000", 200),
        (socket.gethostname(), 200),
    ],
)
async def test_a_name_that_was_bound_to_this_address_is_refused(http, engine, host, status):
    """DNS rebinding: the page's own name, pointed at 127.0.0.1, makes the page and the server one origin."""
    async with running_server(engine) as url:
        headers = {"Host": host, "Origin": f"http://{host}"}
        got, said = await ask(http, f"{url}/generate", headers)
        assert got == status, said
        if status == 403:
            assert "--api-key" in said
        assert (await ask(http, f"{url}/health", headers, method="GET"))[0] == 200


async def test_with_a_key_any_name_will_do(http, engine):
    """No web page knows the key, and a browser does not add it."""
    async with running_server(engine, api_key="k") as url:
        headers = {"Host": "models.example:443", "Authorization": "Bearer k"}
        assert (await ask(http, f"{url}/generate", headers))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_weights_are_changed_by_json_only(http, engine, kind):
    """A page may send the other types to any server unasked."""
    async with running_server(engine) as url:
        headers = {"Content-Type": kind} if kind else {}
        async with http.post(
            f"{url}/update_weights_from_disk",
            data=b'{"model_path": "/"}',
            headers=headers,
            skip_auto_headers=("Content-Type",),
        ) as response:
            assert response.status == 415
            assert "application/json" in (await response.json())["error"]["message"]


# Weights


@pytest.fixture
async def with_weights():
    pytest.importorskip("torch")
    from agentrl.engine import LocalEngine
    from agentrl.models import tiny_model, tiny_tokenizer

    engine = LocalEngine(tiny_model(0), tiny_tokenizer())
    yield engine
    await engine.close()


async def test_model_path_does_not_tell_which_folders_exist(http, with_weights, tmp_path, caplog):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    (broken / "model.safetensors").write_bytes(b"\xff" * 64)
    paths = [tmp_path / "missing", tmp_path / "empty", tmp_path / "file", broken, "tiny", "/root", "\x00"]
    async with running_server(with_weights) as url:
        with caplog.at_level(logging.WARNING):
            said = {await ask(http, f"{url}/update_weights_from_disk", body={"model_path": str(p)}) for p in paths}
    assert len(said) == 1
    ((status, message),) = said
    assert (status, "log" in message) == (400, True)
    assert str(tmp_path) not in message
    assert "missing" in caplog.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model_path": 7}, "model_path"),
        ({"model_path": "m", "weight_version": 7}, "weight_version"),
        ({"model_path": "m", "manifest": {"a": 1}}, "manifest"),
    ],
)
async def test_what_is_not_served_of_a_weight_update_is_named(http, with_weights, body, message):
    async with running_server(with_weights) as url:
        status, said = await ask(http, f"{url}/update_weights_from_disk", body=body)
    assert (status, message in said) == (400, True)


# Where it listens


async def test_an_empty_host_is_refused(engine):
    with pytest.raises(ConfigError, match=r"host '' would listen at every address; write 0\.0\.0\.0"):
        async with running_server(engine, ""):
            pass


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [
        ("127.0.0.1", None, False),
        ("127.5.5.5", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("10.0.0.7", None, True),
        ("node-3", None, True),
        ("0.0.0.0", "k", False),
    ],
)
def test_a_server_that_others_reach_without_a_key_is_warned_of(host, key, warned):
    warning = exposure(host, key)
    assert (warning is not None) == warned
    assert warning is None or ("--api-key" in warning and host in warning)
