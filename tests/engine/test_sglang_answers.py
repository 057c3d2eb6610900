"""What a server answers: a Generation that can be trained on, or an EngineError that names the server and the field."""

from __future__ import annotations

import json
import math
from typing import get_args

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import Env, Limits, StepResult, Task, run_episode
from agentrl.engine import Generation
from agentrl.engine.sglang.answers import read_generation
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import EngineError
from agentrl.models import tiny_tokenizer
from agentrl.models.hub import vocabulary_size
from agentrl.render import load_renderer
from agentrl.types import FinishReason
from tests.doubles.sglang import Fake, answer, client

SERVER = "http://127.0.0.1:30000"


def read(reply, **kwargs):
    return read_generation(json.dumps(reply).encode(), f"{SERVER}/generate", **kwargs)


@pytest.mark.parametrize("token", [None, "7", 7.0, -7, 2**70, 2**31, True, [7], {}])
def test_token_ids_that_are_none_name_the_server_and_the_field(token):
    with pytest.raises(EngineError, match=r"^http://127\.0\.0\.1:30000/generate: output_token_logprobs\[1\]: .* token"):
        read(answer([5, token]))


def test_a_token_beyond_the_vocabulary_is_an_error_where_the_vocabulary_is_known():
    assert read(answer([99])).tokens == [99]
    assert read(answer([99]), vocab_size=100).tokens == [99]
    with pytest.raises(EngineError, match="token id 100 is outside the vocabulary of 100"):
        read(answer([99, 100]), vocab_size=100)


@pytest.mark.parametrize(
    "log_prob", [3.5, 0.001, math.nan, -math.inf, math.inf, None, "-1", True, -(10**400), -1e300, [-1.0]]
)
def test_log_probs_that_are_none_name_the_server_and_the_field(log_prob):
    with pytest.raises(EngineError, match=r"/generate: output_token_logprobs\[0\]: .* log-prob"):
        read(answer([5, 6], log_probs=[log_prob, -1.0]))


def test_rounding_above_zero_is_no_error():
    assert read(answer([5], log_probs=[1e-6])).log_probs == [1e-6]


@pytest.mark.parametrize(("counted", "scored"), [(3, 2), (2, 0), (2**70, 2), ("2", 2), (True, 1), (-1, 0)])
def test_fewer_log_probs_than_tokens_are_an_error(counted, scored):
    with pytest.raises(EngineError, match=r"/generate: .*completion_tokens"):
        read(answer([5] * scored, completion_tokens=counted))


@pytest.mark.parametrize(("counted", "kept"), [(0, []), (1, [5]), (2, [5, 6]), (None, [5, 6])])
def test_log_probs_behind_the_last_token_are_dropped(counted, kept):
    """SGLang sends at least one, even where max_new_tokens is 0."""
    generation = read(answer([5, 6], completion_tokens=counted))
    assert (generation.tokens, len(generation.log_probs)) == (kept, len(kept))
    assert generation.meta["completion_tokens"] == len(kept)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cached_tokens", "3"),
        ("cached_tokens", -1),
        ("cached_tokens", 1.5),
        ("weight_version", ["7"]),
        ("weight_version", True),
        ("finish_reason", "stop"),
        ("finish_reason", {"type": "bored"}),
        ("finish_reason", {"type": ["stop"]}),
        ("finish_reason", {"type": "stop", "matched": [1]}),
        ("finish_reason", {"type": "stop", "matched": 1.5}),
        ("output_token_logprobs", {"0": [-1.0, 5]}),
        ("output_token_logprobs", "abc"),
        ("output_token_logprobs", 7),
        ("output_token_logprobs", [[-1.0]]),
        ("output_token_logprobs", ["-1"]),
    ],
)
def test_every_field_is_read_by_its_type(field, value):
    with pytest.raises(EngineError, match=rf"/generate: .*{field}"):
        read(answer([5], **{field: value}))


def test_a_weight_version_may_be_a_number():
    assert read(answer([5], weight_version=7)).weight_version == "7"


def span(version, start, end):
    return {"version": version, "start": start, "end": end}


def test_weights_that_changed_in_the_middle_are_told_apart_by_token():
    spans = [span("default", 0, 0), span("mid", 0, 2), span("late", 2, 3)]
    generation = read(answer([5, 6, 7], weight_version="late", weight_versions=spans))
    assert (generation.weight_version, generation.earlier_versions) == ("late", (("mid", 2),))
    assert list(generation.versions()) == [("mid", 0, 2), ("late", 2, 3)]
    one = read(answer([5, 6, 7], weight_version="mid", weight_versions=[span("mid", 0, 3)]))
    assert (list(one.versions()), one.earlier_versions) == ([("mid", 0, 3)], ())


@pytest.mark.parametrize(
    "spans",
    [
        7, "mid", {"mid": 3}, [7], [{"version": "a"}], [span(None, 0, 3)], [span("a", 0, 2)], [span("a", 1, 3)],
        [span("a", 0, 2), span("b", 1, 3)], [span("a", 0, 3), span("b", 3, 2)], [span("a", 0, "3")],
    ],
)  # fmt: skip
def test_versions_that_do_not_cover_the_tokens_are_refused(spans):
    with pytest.raises(EngineError, match="weight_versions"):
        read(answer([5, 6, 7], weight_versions=spans))


def test_what_was_read_is_not_kept_twice():
    generation = read(answer([5, 6], routed_experts="AAA=", completion_tokens=2, input_token_logprobs=[[-1, 5, None]]))
    assert generation.meta["routed_experts"] == "AAA="
    assert generation.meta["completion_tokens"] == 2
    assert not {"output_token_logprobs", "input_token_logprobs"} & set(generation.meta)


DEEP = b'{"meta_info": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "raw",
    [
        DEEP,
        b'{"meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": ' + b"9" * 5000 + b"}}",
        b"\xff\xfe\x00",
        b"",
        b"null",
    ],
)
async def test_answers_that_break_a_json_reader_are_engine_errors(raw):
    async def reply(_):
        return web.Response(body=raw)

    async def refuse(_):
        return web.Response(body=raw, status=400)

    fake = Fake(reply, refuse)
    async with fake.serve() as url, client(url) as engine:
        for _ in range(2):
            with pytest.raises(EngineError, match=f"{url}/generate"):
                await engine.generate([1], {})
    assert len(fake.bodies) == 2


@pytest.mark.parametrize("info", [[], "x", {"context_length": True}, {"context_length": "9"}, {"context_length": -1}])
async def test_a_server_info_that_is_none_is_an_engine_error(info):
    fake = Fake()
    fake.info = info
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(EngineError, match=f"{url}/(get_)?server_info"):
            await engine.context_length()


@pytest.mark.parametrize("listed", [[7], ["http://["], [None], ["ftp://x"], ["http://user:secret@127.0.0.1:1"]])
async def test_a_list_of_workers_that_is_none_does_not_keep_an_abort_from_returning(listed, caplog):
    fake = Fake()
    fake.workers = listed
    async with fake.serve() as url, client(url) as engine:
        await engine.abort()
    assert "secret" not in caplog.text


# Fuzzing

hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [2**31, 2**63, -(2**70), 10**400, "stop", "abort", "7", "\ud800", "", [], {}, [[]], [[None, None]]]
    ),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
)
scored = st.lists(st.tuples(st.floats(-20, 0), st.integers(0, 99), st.none()).map(list), max_size=4)
valid = st.fixed_dictionaries(
    {
        "text": st.just(""),
        "meta_info": st.fixed_dictionaries(
            {
                "finish_reason": st.fixed_dictionaries(
                    {"type": st.sampled_from(get_args(FinishReason))}, optional={"matched": st.integers(0, 99)}
                ),
                "output_token_logprobs": scored,
            },
            optional={
                "completion_tokens": st.integers(0, 4),
                "cached_tokens": st.integers(0, 9),
                "weight_version": st.text(max_size=3),
                "weight_versions": st.just(
                    [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 9}]
                ),
            },
        ),
    }
)


def places(value, path=()):
    """The path of every value inside a JSON document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def replaced(document, path, value):
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = replaced(document[path[0]], path[1:], value)
    return copy


def can_be_trained_on(generation: Generation) -> bool:
    tokens, log_probs = generation.tokens, generation.log_probs
    return (
        len(tokens) == len(log_probs)
        and all(type(token) is int and 0 <= token < 100 for token in tokens)
        and all(type(x) is float and math.isfinite(x) and x <= 1e-4 for x in log_probs)
        and generation.finish_reason in get_args(FinishReason)
        and isinstance(generation.matched, int | str | None)
        and isinstance(generation.weight_version, str | None)
        and type(generation.cached_tokens) is int
        and generation.cached_tokens >= 0
    )


@pytest.mark.thorough
@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.data())
def test_whatever_a_server_says_is_a_generation_or_an_engine_error(data):
    document = data.draw(valid)
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, path, data.draw(hostile))
    raw = json.dumps(document).encode()
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw)))
        raw = raw[:at] + data.draw(st.binary(max_size=4)) + raw[at + data.draw(st.integers(0, 3)) :]
    try:
        generation = read_generation(raw, f"{SERVER}/generate", vocab_size=100)
    except EngineError as exc:
        said = str(exc)
    else:
        said = "" if can_be_trained_on(generation) else f"not to be trained on: {generation}"
    assert not said or (said.startswith(f"{SERVER}/generate: ") and "\n" not in said)


# In an episode


class Chat(Env):
    async def step(self, action):
        return StepResult("Go on.", done=True)

    async def score(self, trajectory):
        return 1.0


@pytest.mark.parametrize(
    "reply",
    [
        answer([5, None]),
        answer([5, "6"]),
        answer([5, 6.0]),
        answer([5, -7]),
        answer([5, 2**70]),
        answer([5, 1024]),
        answer([5, 6], log_probs=[-0.5, 3.5]),
        answer([5, 6], log_probs=[-0.5, math.nan]),
        answer([5, 6], completion_tokens=3),
    ],
)
async def test_what_a_server_gets_wrong_is_the_environments_failure_and_trains_nothing(reply):
    tokenizer = tiny_tokenizer()
    fake = Fake(reply)
    async with fake.serve() as url, client(url, vocab_size=len(tokenizer)) as engine:
        options = EpisodeOptions(limits=Limits(context=400))
        task = Task(prompt="capital of France?")
        trajectory = await run_episode(Chat(), task, engine=engine, renderer=load_renderer(tokenizer), options=options)
    assert trajectory.failure is not None
    assert (trajectory.failure.kind, trajectory.failure.boundary) == ("engine", "engine")
    assert url in trajectory.failure.error
    assert sum(trajectory.loss_mask) == 0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 100}, 100),
        ({"text_config": {"vocab_size": 200}}, 200),
        ({"vocab_size": "many"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_the_vocabulary_is_known_by_the_models_configuration(tmp_path, config, expected):
    assert vocabulary_size(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_size(str(tmp_path)) == expected


def test_the_vocabulary_of_a_name_in_the_hubs_cache(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    monkeypatch.setattr("agentrl.models.hub._cached", lambda name, revision: tmp_path if name == "org/cached" else None)
    assert vocabulary_size("org/cached") == vocabulary_size("org/cached@main") == 300
    assert vocabulary_size("org/absent") is None
    assert vocabulary_size("tiny") == len(tiny_tokenizer())
