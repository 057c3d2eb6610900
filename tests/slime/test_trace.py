"""adapt's episodes among slime's trace spans."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from types import ModuleType

import pytest

from agentrl import adapt
from agentrl._util.boundary import watcher
from tests.slime.questions import PARAMS, question


class Span:
    def __init__(self):
        self.attrs = {}

    def update(self, attrs):
        self.attrs.update(attrs)


@pytest.fixture
def spans(host, monkeypatch):
    """What slime's trace_span was given: (prompt of the sample, name, attributes at the end)."""
    found = []

    @contextmanager
    def trace_span(sample, name, *, attrs=None):
        span = Span()
        span.update(attrs or {})
        found.append((sample.prompt, name, span.attrs))
        yield span

    module = ModuleType("fakehost.observability.trace_utils")
    module.trace_span, module.build_sglang_meta_trace_attrs = trace_span, dict
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


EPISODE = ["env_reset", "sglang_generate", "env_step", "sglang_generate", "env_step", "env_score"]


async def test_each_request_and_each_hook_is_a_span(host, serve, make_args, spans):
    async with serve() as (_, url):
        sample = await adapt(make_args(url), question(host.Sample), PARAMS)
    assert sample.reward == 1.0
    assert [name for _, name, _ in spans] == EPISODE
    first = spans[1][2]
    assert first["max_new_tokens"] == PARAMS["max_new_tokens"]
    assert first["finish_reason"]["type"] == "stop", "in SGLang's words"
    assert first["e2e_latency"] > 0, "what the engine says of a request is what slime's metrics are made of"
    assert watcher.get() is None


async def test_episodes_side_by_side_have_their_own(host, serve, make_args, spans):
    countries = {"France": "Paris", "Spain": "Madrid"}
    async with serve() as (_, url):
        args = make_args(url)
        await asyncio.gather(*(adapt(args, question(host.Sample, c, city), PARAMS) for c, city in countries.items()))
    for country in countries:
        assert [name for prompt, name, _ in spans if country in prompt] == EPISODE


async def test_a_broken_env_is_traced_to_where_it_broke(host, serve, make_args, spans):
    async with serve() as (_, url):
        sample = await adapt(make_args(url), question(host.Sample, metadata={"break": "step", "how": "bug"}), PARAMS)
    assert sample.remove_sample
    assert [name for _, name, _ in spans] == ["env_reset", "sglang_generate", "env_step"]


async def test_a_host_without_traces(host, serve, make_args):
    async with serve() as (_, url):
        assert (await adapt(make_args(url), question(host.Sample), PARAMS)).reward == 1.0
