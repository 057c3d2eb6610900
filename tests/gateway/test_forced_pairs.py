"""Grammars of calls whose arguments are no JSON, as xgrammar obeys them: random answers are read back."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
pytest.importorskip("xgrammar", reason="grammars need the package xgrammar")

from agentrl.chat.request import Forced, RefusedError  # noqa: E402
from agentrl.chat.tokens.grammar import structural_tag  # noqa: E402
from agentrl.engine.local.grammar import Grammars, allowed  # noqa: E402
from agentrl.engine.local.sampling import Sampling  # noqa: E402
from agentrl.errors import EngineError  # noqa: E402
from agentrl.render import load_renderer  # noqa: E402
from tests.render.markers import made_files, template_files, tokenizer_of  # noqa: E402

SIZE = {"enum": ["small", "large"]}
PARAMETERS = {
    "type": "object",
    "properties": {
        "what": {"type": "string"},
        "size": {"$ref": "#/$defs/size"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "unit": {"anyOf": [{"const": "kg"}, {"type": "boolean"}]},
    },
    "required": ["what", "size", "count"],
    "$defs": {"size": SIZE},
}
ALL = {"type": "object", "properties": {"all": {"type": "boolean"}}}
TOOLS = [
    {"type": "function", "function": {"name": "buy", "description": "Buy it.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "list", "description": "List.", "parameters": ALL}},
]
BUY, ANY = Forced(("buy",), parallel=False), Forced(("buy", "list"))
GOOD = {"what": "two\nlines of <b>text</b>", "size": "large", "count": 3}
PAIRS = ["Qwen3-Coder", "GLM-4.6", "ByteDance-Seed-OSS", "dsml"]
REFUSED = ["bare_keys", "key_tags", "pythonic_tagged", "json_in_json"]


@cache
def renderer_of(name):
    (path,) = (path for path in [*template_files(), *made_files()] if path.stem == name)
    tokenizer = tokenizer_of(path)
    renderer = load_renderer(tokenizer).bind(TOOLS)
    return renderer, Grammars(tokenizer, len(tokenizer), frozenset(renderer.stop_token_ids)), len(tokenizer)


@cache
def sampling(name, forced):
    return Sampling(0, structural_tag=structural_tag(renderer_of(name)[0], forced, TOOLS, thinking=False))


def begun(name, forced):
    return renderer_of(name)[1].begin(sampling(name, forced))


def written(renderer, *calls):
    functions = [{"name": called, "arguments": arguments} for called, arguments in calls]
    made = [{"id": f"call0000{i}", "type": "function", "function": one} for i, one in enumerate(functions)]
    return renderer.encode({"role": "assistant", "content": "", "tool_calls": made})


def takes(name, forced, *calls):
    """Whether the grammar takes just what the template writes."""
    state, (renderer, *_) = begun(name, forced), renderer_of(name)
    tokens = written(renderer, *calls)
    if tokens[-1] not in renderer.stop_token_ids:
        tokens = [*tokens, min(renderer.stop_token_ids)]
    try:
        for token in tokens:
            state.take(token)
    except EngineError:
        return False
    return state.ended


@pytest.mark.parametrize("name", PAIRS)
def test_it_takes_what_the_template_writes_and_the_schema_allows(name):
    assert takes(name, BUY, ("buy", GOOD))
    assert takes(name, ANY, ("buy", GOOD), ("list", {})) == (name != "dsml")  # which writes a block around all calls
    assert takes(name, BUY, ("buy", {**GOOD, "unit": "kg"}))
    assert takes(name, BUY, ("buy", {**GOOD, "what": ""}))
    listed = takes(name, BUY, ("buy", {**GOOD, "tags": ["a", "b"]}))
    assert listed == (name != "ByteDance-Seed-OSS")  # which writes lists as Python does; JSON is read as well
    assert not takes(name, BUY, ("buy", GOOD), ("buy", GOOD))
    assert not takes(name, BUY, ("list", {}))
    assert not takes(name, BUY, ("buy", {**GOOD, "size": "huge"}))
    assert not takes(name, BUY, ("buy", {**GOOD, "count": "three"}))
    assert not takes(name, BUY, ("buy", {**GOOD, "colour": "red"}))
    assert not takes(name, BUY, ("buy", {key: GOOD[key] for key in ("what", "size")}))


def drawn(name, forced, seed, most=300):
    """A random answer, with a taste for tokens of the template's own texts. None if it does not end."""
    (renderer, _, vocabulary), state, rng, said = renderer_of(name), begun(name, forced), random.Random(seed), []
    usual = set(written(renderer, ("buy", GOOD)))
    while not state.ended and len(said) < most:
        rows, may = allowed([state], torch.zeros(1, vocabulary))
        free = may[0].nonzero()[:, 0].tolist() if rows else list(range(vocabulary))
        known = [token for token in free if token in usual]
        said.append(rng.choice(known if known and rng.random() < 0.8 else free))
        state.take(said[-1])
    return said if state.ended else None


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_what_it_allows_is_read_as_a_call_that_obeys_the_schema(name):
    renderer = renderer_of(name)[0]
    answers = [said for seed in range(16) if (said := drawn(name, ANY, seed)) is not None]
    assert len(answers) > 3
    for said in answers:
        action = renderer.parse(said, "stop", said[-1])
        text = renderer.decode(said)
        assert action.calls, text
        for call in action.calls:
            assert call.error is None, (call.error, text)
            given = call.arguments
            if call.name == "list":
                assert given in ({}, {"all": True}, {"all": False}), text
                continue
            assert {"what", "size", "count"} <= given.keys() <= PARAMETERS["properties"].keys(), text
            assert isinstance(given["what"], str), text
            assert given["size"] in SIZE["enum"], text
            assert type(given["count"]) is int, text
            assert all(isinstance(tag, str) for tag in given.get("tags", [])), text
            assert given.get("unit", True) in ("kg", True, False), text


@pytest.mark.parametrize("name", REFUSED)
def test_other_ways_to_write_arguments_are_refused(name):
    with pytest.raises(RefusedError, match=re.escape("neither as JSON nor as keys and values between tags; ask for")):
        structural_tag(renderer_of(name)[0], ANY, TOOLS, thinking=False)
