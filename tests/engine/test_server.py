from __future__ import annotations

import asyncio
import io
import json
import os
import signal

import aiohttp
import pytest

from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.engine.sglang.server import running_server, serve
from agentrl.errors import ConfigError, EngineError


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


# What slime 0.3.1 sends: null for what is not set.
SLIME_PARAMS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_new_tokens": 100,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": False,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def slow(chars):
    """The URL of a server whose engine takes its time, and the engine."""
    engine = ScriptedEngine(lambda _: "0123456789" * 10, chars, seconds=20.0)
    async with running_server(engine, decode=chars.decode) as url:
        yield url, engine


async def post(http, url, body):
    async with http.post(url, json=body) as response:
        return response.status, await response.json()


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - polls what lives in another object
            await asyncio.sleep(0.005)


async def test_generate_answers_in_sglangs_shape(http, chars):
    engine = ScriptedEngine(["hello"], chars)
    async with running_server(engine, model_name="m", decode=chars.decode) as url:
        body = {"input_ids": [1, 2, 3], "sampling_params": SLIME_PARAMS, "return_logprob": True, "rid": "r1"}
        status, answer = await post(http, f"{url}/generate", body)
    assert status == 200
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") >= 0
    assert answer == {
        "text": "hello$",
        "output_ids": ids("hello$"),
        "meta_info": {
            "id": "r1",
            "finish_reason": {"type": "stop", "matched": ord("$")},
            "prompt_tokens": 3,
            "completion_tokens": 6,
            "cached_tokens": 0,
            "weight_version": "default",
            "output_token_logprobs": [[scripted_log_prob(token), token, None] for token in ids("hello$")],
        },
    }
    assert engine.requests == [[1, 2, 3]]


async def test_no_log_probs_unless_asked_and_a_length_finish(http, chars):
    async with running_server(ScriptedEngine(["hello"], chars)) as url:
        _, answer = await post(http, f"{url}/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}})
    assert "output_token_logprobs" not in answer["meta_info"]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert answer["text"] == ""
    assert answer["meta_info"]["id"]


async def test_text_is_encoded_where_there_is_a_tokenizer(http, chars):
    engine = ScriptedEngine(lambda input_ids: "x" * len(input_ids), chars)
    async with running_server(engine, encode=ids, decode=chars.decode) as url:
        _, answer = await post(http, f"{url}/generate", {"text": "four"})
    assert answer["text"] == "xxxx$"
    async with running_server(engine) as url:
        status, answer = await post(http, f"{url}/generate", {"text": "four"})
    assert (status, answer) == (
        400,
        {"error": {"message": "this server has no tokenizer: send input_ids instead of text"}},
    )


async def test_parameters_reach_the_engine(http):
    seen = {}

    class Recorder(ScriptedEngine):
        async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
            seen.update(sampling_params, session_id=session_id, rid=rid)
            return Generation([7], [-1.0], "stop", matched=7, weight_version="3", cached_tokens=2)

    params = {**SLIME_PARAMS, "stop": "</a>", "stop_token_ids": [7], "sampling_seed": 5, "min_p": 0.0, "regex": None}
    async with (
        running_server(Recorder([], None)) as url,
        http.post(
            f"{url}/generate",
            json={"input_ids": [1], "sampling_params": params, "rid": "r"},
            headers={"X-SMG-Routing-Key": "s"},
        ) as response,
    ):
        answer = await response.json()
    assert seen == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 100,
        "stop": ["</a>"],
        "stop_token_ids": [7],
        "sampling_seed": 5,
        "session_id": "s",
        "rid": "r",
    }
    assert answer["meta_info"]["weight_version"] == "3"
    assert answer["meta_info"]["cached_tokens"] == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input_ids must be one non-empty list of token ids"),
        ({"input_ids": []}, "input_ids must be one non-empty list"),
        ({"input_ids": [[1, 2]]}, "takes no batches"),
        ({"input_ids": [1, "2"]}, "input_ids must be"),
        ({"input_ids": [1, True]}, "input_ids must be"),
        ({"input_ids": [1, -2]}, "input_ids must be"),
        ({"input_ids": [1], "rid": 7}, "rid must be a string"),
        ({"input_ids": [1], "sampling_params": [1]}, "sampling_params must be an object"),
        (
            {"input_ids": [1], "sampling_params": {"max_new_tokens": "5"}},
            "sampling_params.max_new_tokens has the wrong",
        ),
        (
            {"input_ids": [1], "sampling_params": {"temperature": True}},
            "sampling_params.temperature has the wrong type",
        ),
        ({"input_ids": [1], "sampling_params": {"stop": [1]}}, "sampling_params.stop must be a list of str"),
        ({"input_ids": [1], "sampling_params": {"stop": ""}}, "stop must be a list of str, none empty"),
        ({"input_ids": [1], "sampling_params": {"stop_token_ids": ["a"]}}, "stop_token_ids must be a list of int"),
        ({"input_ids": [1], "sampling_params": {"min_p": 0.1}}, "sampling_params.min_p=0.1 is not supported"),
        ({"input_ids": [1], "sampling_params": {"json_schema": "{}"}}, "json_schema='{}' is not supported"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0"),
        ({"input_ids": [1], "sampling_params": {"temperature": -0.1}}, "temperature must be non-negative"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0}}, r"top_p must be in \(0, 1\]"),
        ({"input_ids": [1], "sampling_params": {"top_k": 0}}, "top_k must be -1"),
        (
            {"input_ids": [1] * 200},
            r"The input \(200 tokens\) is longer than .* context length \(200 tokens\)",
        ),
        ({"input_ids": [1] * 150, "sampling_params": {"max_new_tokens": 51}}, "requested a total of 201 tokens"),
    ],
)
async def test_bad_requests_are_refused_in_sglangs_form(http, chars, body, message):
    engine = ScriptedEngine(["never"], chars, context_length=200)
    async with running_server(engine) as url:
        status, answer = await post(http, f"{url}/generate", body)
    assert status == 400
    with pytest.raises(ValueError, match=message):
        raise ValueError(answer["error"]["message"])
    assert engine.requests == []


@pytest.mark.parametrize(("body", "message"), [(b"{", "the body is not JSON"), (b"[1]", "must be a JSON object")])
async def test_bad_json_is_refused(http, chars, body, message):
    async with running_server(ScriptedEngine([], chars)) as url:
        for path in ("/generate", "/abort_request", "/pause_generation"):
            async with http.post(f"{url}{path}", data=body) as response:
                assert response.status == 400
                assert message in (await response.json())["error"]["message"]


async def test_engine_errors_keep_their_words(http, chars):
    engine = ScriptedEngine([EngineError("out of memory"), ConfigError("top_k must be less")], chars)
    async with running_server(engine) as url:
        assert await post(http, f"{url}/generate", {"input_ids": [1]}) == (500, {"error": {"message": "out of memory"}})
        status, answer = await post(http, f"{url}/generate", {"input_ids": [1]})
    assert (status, answer["error"]["message"]) == (400, "top_k must be less")


async def test_a_long_history_fits_into_a_request(http, chars):
    engine = ScriptedEngine(lambda input_ids: str(len(input_ids)), chars)
    async with running_server(engine, decode=chars.decode) as url:
        body = io.BytesIO(json.dumps({"input_ids": [123456] * 300_000}).encode())
        async with http.post(f"{url}/generate", data=body) as response:
            assert (await response.json())["text"] == "300000$"


async def test_stream_is_one_event_and_done(http, chars):
    async with (
        running_server(ScriptedEngine(["hi"], chars), decode=chars.decode) as url,
        http.post(f"{url}/generate", json={"input_ids": [1], "stream": True}) as response,
    ):
        assert response.content_type == "text/event-stream"
        events = (await response.text()).strip().split("\n\n")
    assert [event[: len("data: ")] for event in events] == ["data: ", "data: "]
    assert json.loads(events[0][len("data: ") :])["text"] == "hi$"
    assert events[1] == "data: [DONE]"


async def test_information(http, chars):
    engine = ScriptedEngine([], chars, context_length=4096)
    async with running_server(engine, model_name="tiny") as url:

        async def get(path):
            async with http.get(url + path) as response:
                assert response.status == 200
                return await response.json() if response.content_type == "application/json" else await response.text()

        assert (await get("/health"), await get("/health_generate")) == ("", "")
        info = await get("/model_info")
        assert (info["model_path"], info["is_generation"], info["weight_version"]) == ("tiny", True, "default")
        engine.weight_version = 7
        assert (await get("/get_model_info"))["weight_version"] == "7"
        assert (await get("/server_info"))["context_length"] == 4096
        assert await get("/get_server_info") == await get("/server_info")
        assert [worker["url"] for worker in (await get("/workers"))["workers"]] == [url]
        assert (await get("/get_load"))[0]["num_reqs"] == 0
        assert await get("/flush_cache") == "Cache flushed.\n"


async def test_abort_all_and_load_as_slime_uses_them(http, slow):
    url, engine = slow
    body = {"input_ids": [1], "sampling_params": SLIME_PARAMS, "return_logprob": True}
    running = [asyncio.create_task(post(http, f"{url}/generate", body)) for _ in range(3)]
    await until(lambda: len(engine.requests) == 3)

    async def load():
        async with http.get(f"{url}/v1/loads?include=core") as response:
            return sum(rank["num_total_reqs"] for rank in (await response.json())["loads"])

    assert await load() == 3
    async with http.post(f"{url}/abort_request", json={"abort_all": True}) as response:
        assert response.status == 200
    for _, answer in await asyncio.gather(*running):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(answer["meta_info"]["output_token_logprobs"]) == answer["meta_info"]["completion_tokens"]
    assert await load() == 0


async def test_abort_by_rid_ends_that_one_only_and_a_rid_is_held_once(http, slow):
    url, engine = slow
    one, two = (asyncio.create_task(post(http, f"{url}/generate", {"input_ids": [1], "rid": rid})) for rid in "ab")
    await until(lambda: len(engine.requests) == 2)
    status, answer = await post(http, f"{url}/generate", {"input_ids": [1], "rid": "a"})
    assert (status, answer["error"]["message"]) == (400, "Duplicate request ID detected: a")
    async with http.post(f"{url}/abort_request", json={"rid": "a"}):
        pass
    assert (await one)[1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert not two.done()
    status, answer = await post(http, f"{url}/abort_request", {"rid": None})
    assert (status, "abort_all" in answer["error"]["message"]) == (400, True)
    async with http.post(f"{url}/abort_request", json={"abort_all": True}):
        pass
    await two


async def test_pause_aborts_what_runs_and_holds_what_comes(http, slow):
    url, engine = slow
    running = asyncio.create_task(post(http, f"{url}/generate", {"input_ids": [1]}))
    await until(lambda: len(engine.requests) == 1)
    status, _ = await post(http, f"{url}/pause_generation", {})
    assert status == 200
    assert (await running)[1]["meta_info"]["finish_reason"]["type"] == "abort"

    held, dropped = (asyncio.create_task(post(http, f"{url}/generate", {"input_ids": [2], "rid": rid})) for rid in "ab")
    await asyncio.sleep(0.05)
    assert len(engine.requests) == 1
    async with http.get(f"{url}/v1/loads") as response:
        assert (await response.json())["loads"][0]["num_waiting_reqs"] == 2
    async with http.post(f"{url}/abort_request", json={"rid": "b"}):
        pass
    assert (await dropped)[1]["meta_info"]["completion_tokens"] == 0
    await post(http, f"{url}/continue_generation", {})
    await until(lambda: len(engine.requests) == 2)
    async with http.post(f"{url}/abort_request", json={"abort_all": True}):
        pass
    assert (await held)[1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert (await post(http, f"{url}/pause_generation", {"mode": "retract"}))[0] == 400


async def test_a_client_that_goes_away_cancels_its_generation(slow):
    url, engine = slow
    async with aiohttp.ClientSession() as session:
        running = asyncio.create_task(post(session, f"{url}/generate", {"input_ids": [1]}))
        await until(lambda: engine.in_progress)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until(lambda: not engine.in_progress)


@pytest.mark.parametrize("paused", [False, True])
async def test_shutdown_gives_clients_what_there_is(http, chars, paused):
    engine = ScriptedEngine(["0123456789"], chars, seconds=20)
    async with running_server(engine) as url:
        if paused:
            await post(http, f"{url}/pause_generation", {})
        running = asyncio.create_task(post(http, f"{url}/generate", {"input_ids": [1]}))
        await asyncio.sleep(0.1)
    status, answer = await running
    assert (status, answer["meta_info"]["finish_reason"]["type"]) == (200, "abort")


async def test_a_taken_port_is_an_os_error(chars):
    engine = ScriptedEngine([], chars)
    async with running_server(engine) as url:
        with pytest.raises(OSError, match="address already in use"):
            async with running_server(engine, port=int(url.rsplit(":", 1)[1])):
                raise AssertionError("two servers on one port")


async def test_serve_until_a_signal(http, chars):
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(ScriptedEngine(["hi"], chars), port=0, on_ready=ready.set_result))
    url = await ready
    assert url.startswith("http://127.0.0.1:")
    status, _ = await post(http, f"{url}/generate", {"input_ids": [1]})
    assert status == 200
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(10):
        await serving
    with pytest.raises(aiohttp.ClientConnectorError):
        await post(http, f"{url}/generate", {"input_ids": [1]})


async def test_weights_from_disk(http, tmp_path, caplog):
    pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    from agentrl.engine.local import LocalEngine
    from agentrl.models import save_model, tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    save_model(tiny_model(1), tokenizer, tmp_path / "new")
    save_model(tiny_model(1), tokenizer, tmp_path / "half")
    weights = load_file(tmp_path / "half" / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "half" / "model.safetensors", metadata={"format": "pt"})
    engine = LocalEngine(tiny_model(0), tokenizer)
    prompt, params = tokenizer.encode("capital of"), {"temperature": 0, "max_new_tokens": 8}
    async with running_server(engine, decode=tokenizer.decode) as url:
        body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
        await post(http, f"{url}/generate", body)
        update = {"model_path": str(tmp_path / "new"), "weight_version": "7"}
        status, said = await post(http, f"{url}/update_weights_from_disk", update)
        assert (status, said["success"]) == (200, True)
        after = (await post(http, f"{url}/generate", body))[1]["meta_info"]
        refused = [
            await post(http, f"{url}/update_weights_from_disk", wrong)
            for wrong in (
                {},
                {"model_path": str(tmp_path)},
                {"model_path": "tiny"},
                {"model_path": str(tmp_path / "half")},
            )
        ]
    fresh = LocalEngine(tiny_model(1), tokenizer)
    expected = await fresh.generate(prompt, params)
    await asyncio.gather(engine.close(), fresh.close())
    assert after["weight_version"] == "7"
    assert [token for _, token, _ in after["output_token_logprobs"]] == list(expected.tokens)
    assert [status for status, _ in refused] == [400] * 4
    assert "model.norm.weight missing" in caplog.text


async def test_an_engine_without_weights_refuses_them(http, chars):
    async with running_server(ScriptedEngine(["x"], chars)) as url:
        assert (await post(http, f"{url}/update_weights_from_disk", {"model_path": "m"}))[0] == 400
