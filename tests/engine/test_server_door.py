"""The door of the server: what cannot be served answers 400 with the reason, once, and harms nobody else."""

from __future__ import annotations

import asyncio
import io
import json
import threading

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine import ScriptedEngine, SGLangEngine
from agentrl.engine.sglang.bodies import GenerateBody
from agentrl.engine.sglang.server import running_server
from agentrl.errors import RequestError


def ids(text):
    return [ord(character) for character in text]


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http, url, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url, data=io.BytesIO(raw)) as response:
        return response.status, (await response.json())


def said(answer):
    return answer["error"]["message"]


# Parameters


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_k": 2**63}, "top_k must be"),
        ({"top_k": 2**31}, "top_k must be"),
        ({"temperature": 1e300}, "temperature must be"),
        ({"temperature": 10**400}, "temperature must be"),
        ({"stop": ["fine", "\ud800"]}, "sampling_params.stop holds a lone surrogate"),
        ({"stop": ["x"] * 1000}, "sampling_params.stop holds more than"),
        ({"stop": ["x" * 100_000]}, "sampling_params.stop holds more than"),
        ({"stop_token_ids": [-1]}, "sampling_params.stop_token_ids"),
        ({"stop_token_ids": [2**70]}, "sampling_params.stop_token_ids"),
        ({"stop_token_ids": [True]}, "sampling_params.stop_token_ids"),
        ({"sampling_seed": 2**63}, "sampling_seed must be"),
        ({"sampling_seed": -1}, "sampling_seed must be"),
        ({"max_new_tokens": 2**70}, "requested a total of"),
        ({"beam_width": 2}, "sampling_params.beam_width"),
        ({"custom_params": {"return_top_p_token_ids": True}}, "sampling_params.custom_params"),
        ({"logit_bias": {"5": 1.0}}, "sampling_params.logit_bias"),
    ],
)
async def test_parameters_that_no_engine_takes_are_named(http, chars, params, message):
    engine = ScriptedEngine([], chars)
    async with running_server(engine) as url:
        status, answer = await post(http, f"{url}/generate", {"input_ids": [1], "sampling_params": params})
    assert status == 400
    assert message in said(answer)
    assert engine.requests == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"input_ids": [1], "sampling_params": {"temperature": NaN}}', "NaN is not JSON"),
        (b'{"input_ids": [1], "sampling_params": {"temperature": -Infinity}}', "-Infinity is not JSON"),
        (b'{"input_ids": [1], "sampling_params": {"temperature": 1e999}}', "temperature must be"),
        (b'{"input_ids": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"input_ids": [' + b"9" * 5000 + b"]}", "the body is not JSON"),
        (b'{"text": "\xff"}', "the body is not JSON"),
    ],
)
async def test_bodies_that_break_a_json_reader_are_refused(http, chars, body, message):
    async with running_server(ScriptedEngine([], chars), encode=ids) as url:
        for path in ("/generate", "/abort_request"):
            status, answer = await post(http, url + path, body)
            if path == "/generate" or "temperature must" not in message:
                assert (status, message in said(answer)) == (400, True), said(answer)


async def test_nearly_greedy_is_greedy_as_in_sglang(http):
    seen = {}

    class Recorder(ScriptedEngine):
        async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
            seen.update(sampling_params)
            return await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)

    async with running_server(Recorder([], None)) as url:
        await post(http, f"{url}/generate", {"input_ids": [1], "sampling_params": {"temperature": 1e-9}})
    assert seen["temperature"] == 0.0


# Fields


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lora_path", "adapter"),
        ("video_data", "v.mp4"),
        ("audio_data", "a.wav"),
        ("input_embeds", [[0.1]]),
        ("logprob_start_len", 0),
        ("top_logprobs_num", 5),
        ("token_ids_logprob", [1]),
        ("return_hidden_states", True),
        ("return_routed_experts", True),
        ("return_text_in_logprobs", True),
        ("return_prompt_token_ids", True),
        ("session_params", {"id": "s"}),
        ("custom_logit_processor", "..."),
        ("bootstrap_host", "10.0.0.1"),
        ("require_reasoning", True),
        ("max_thinking_tokens", 7),
        ("a_field_of_tomorrow", 1),
    ],
)
async def test_a_field_that_changes_the_answer_and_is_not_served_is_named(http, chars, name, value):
    engine = ScriptedEngine([], chars)
    async with running_server(engine) as url:
        status, answer = await post(http, f"{url}/generate", {"input_ids": [1], name: value})
    assert (status, name in said(answer), "not served" in said(answer)) == (400, True, True)
    assert engine.requests == []


async def test_fields_at_their_defaults_and_those_that_change_nothing_are_accepted(http, chars):
    body = {
        "input_ids": [1],
        "text": None,
        "image_data": None,
        "lora_path": None,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "routed_experts_start_len": 0,
        "return_hidden_states": False,
        "return_routed_experts": False,
        "token_ids_logprob": [],
        "session_id": "s",
        "priority": 3,
        "data_parallel_rank": 0,
        "routing_key": "k",
        "extra_key": "e",
        "no_logs": True,
        "log_metrics": False,
        "custom_labels": {"a": "b"},
    }
    async with running_server(ScriptedEngine(["hi"], chars), decode=chars.decode) as url:
        status, answer = await post(http, f"{url}/generate", body)
    assert (status, answer["text"]) == (200, "hi$")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "a", "input_ids": [1]}, "either text or input_ids"),
        ({"text": ["a", "b"]}, "takes no batches"),
        ({"text": "", "input_ids": None}, "text is empty"),
        ({"text": "a\ud800"}, "text holds a lone surrogate"),
        ({"input_ids": [1], "rid": ""}, "rid must be"),
        ({"input_ids": [1], "rid": ["a"]}, "rid must be"),
        ({"input_ids": [1], "stream": "yes"}, "stream must be"),
        ({"input_ids": [1], "return_logprob": [True]}, "return_logprob must be"),
        ({"input_ids": [2**31]}, "input_ids"),
        ({"input_ids": {"0": 1}}, "input_ids"),
    ],
)
async def test_what_is_no_request_is_refused(http, chars, body, message):
    engine = ScriptedEngine([], chars)
    async with running_server(engine, encode=ids) as url:
        status, answer = await post(http, f"{url}/generate", body)
    assert (status, message in said(answer)) == (400, True), said(answer)
    assert engine.requests == []


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([2**31, 2**63, -(2**63) - 1, 10**400, "\ud800", "", 1e308, -1]),
        st.text(max_size=4),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
parameter_names = st.sampled_from(
    ["temperature", "top_p", "top_k", "max_new_tokens", "stop", "stop_token_ids", "sampling_seed", "min_p", "n", "x"]
)
field_names = st.sampled_from(["input_ids", "text", "rid", "return_logprob", "stream", "sampling_params", "lora_path"])


@pytest.mark.thorough
@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.dictionaries(field_names, json_values, max_size=4),
    st.none() | st.dictionaries(parameter_names, json_values, max_size=4),
    st.booleans(),
)
def test_whatever_is_asked_is_read_or_refused(fields, params, whole):
    given_fields = {**fields, **({"sampling_params": params} if params is not None else {})}
    if whole:
        given_fields = {"input_ids": [1, 2], **given_fields}
    try:
        body = GenerateBody.read(given_fields)
    except RequestError as exc:
        assert str(exc)  # noqa: PT017 - one of the two outcomes
        return
    assert (body.text is None) != (body.input_ids is None)
    params = body.sampling_params
    assert 0 <= params.get("temperature", 1.0) <= 1e6
    assert 0 < params.get("top_p", 1.0) <= 1
    assert params.get("top_k", -1) < 2**31
    assert all(stop.encode() for stop in params["stop"])
    assert all(0 <= token < 2**31 for token in params["stop_token_ids"])


# A request at fault is alone with it


@pytest.fixture(scope="module")
def tiny():
    pytest.importorskip("torch")
    from agentrl.models import tiny_model, tiny_tokenizer

    return tiny_model(0), tiny_tokenizer()


@pytest.fixture
async def served(tiny):
    from agentrl.engine import LocalEngine

    model, tokenizer = tiny
    engine = LocalEngine(model, tokenizer)
    async with running_server(engine, encode=tokenizer.encode, decode=tokenizer.decode) as url:
        yield url
    await engine.close()


FAULTS = [
    {"sampling_params": {"top_k": 2**63}},
    {"sampling_params": {"stop": ["\ud800"]}},
    {"sampling_params": {"temperature": 1e308}},
    {"sampling_params": {"stop_token_ids": [2**70]}},
    {"input_ids": [10**6]},
    {"input_ids": [2**70]},
]


async def test_a_request_at_fault_harms_nobody(http, served):
    innocent = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 20, "temperature": 1.0}}
    asked = []
    for n in range(30):
        asked.append(post(http, f"{served}/generate", innocent))
        if n % 5 == 0:
            asked.append(post(http, f"{served}/generate", {**innocent, **FAULTS[n // 5]}))
    statuses = [status for status, _ in await asyncio.gather(*asked)]
    assert (statuses.count(200), statuses.count(400)) == (30, 6)


async def test_a_token_of_another_tokenizer_ends_at_once_and_says_so(served, monkeypatch):
    async with SGLangEngine(served) as engine:
        paused = []
        monkeypatch.setattr("agentrl.engine.sglang.connections.pause", lambda *_: paused.append(1) or 0.0)
        with pytest.raises(RequestError, match=r"HTTP 400: .*vocabulary of \d+.*tokenizer mismatch\?"):
            await engine.generate([5, 10**6], {"max_new_tokens": 2})
    assert paused == []


async def test_what_an_engine_did_not_expect_is_its_own_fault(http, chars):
    """The client asks again: the next worker may be healthy."""

    class Broken(ScriptedEngine):
        async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
            raise IndexError("of the engine")

    async with running_server(Broken([], chars)) as url:
        status, answer = await post(http, f"{url}/generate", {"input_ids": [1]})
        async with http.get(f"{url}/health") as response:
            assert response.status == 200
    assert (status, said(answer)) == (500, "IndexError: of the engine")


# Size


async def test_a_text_being_tokenised_does_not_block_the_server(http, chars):
    started, release = threading.Event(), threading.Event()

    def encode(text):
        started.set()
        release.wait(30)
        return ids(text)

    async with running_server(ScriptedEngine(["hi"], chars), encode=encode, decode=chars.decode) as url:
        running = asyncio.create_task(post(http, f"{url}/generate", {"text": "slow"}))
        await asyncio.to_thread(started.wait, 30)
        async with asyncio.timeout(10), http.get(f"{url}/health") as response:
            assert response.status == 200
        release.set()
        assert (await running)[1]["text"] == "hi$"


async def test_texts_are_tokenised_one_at_a_time(http, chars):
    """A tokenizer must not be used by two threads at once."""
    inside, most = 0, 0

    def encode(text):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.01)
        inside -= 1
        return ids(text)

    engine = ScriptedEngine(lambda _: "hi", chars)
    async with running_server(engine, encode=encode) as url:
        await asyncio.gather(*[post(http, f"{url}/generate", {"text": "abc"}) for _ in range(8)])
    assert most == 1


async def test_a_text_that_cannot_fit_is_refused_unread(http, chars):
    def encode(text):
        raise AssertionError("tokenised")

    engine = ScriptedEngine([], chars, context_length=100)
    async with running_server(engine, encode=encode) as url:
        status, answer = await post(http, f"{url}/generate", {"text": "x" * 10_000_000})
    assert status == 400
    assert "10000000 characters" in said(answer)


async def test_a_body_beyond_the_bound_is_refused_and_final(http, chars, monkeypatch):
    monkeypatch.setattr("agentrl.engine.sglang.server._IMAGE_BODY_BYTES", 1000)
    async with running_server(ScriptedEngine([], chars)) as url, SGLangEngine(url) as engine:
        status, answer = await post(http, f"{url}/generate", {"input_ids": [1] * 1000})
        with pytest.raises(RequestError, match="HTTP 413"):
            await engine.generate([1] * 1000, {})
    assert status == 413
    assert "1000 bytes" in said(answer)
