"""Grammars against a real SGLang: what its log-probs are, what is trained of an answer, and what it refuses.

.ci/sglang.sh starts one and runs these tests; see test_real_sglang.py.
"""

from __future__ import annotations

import json

import pytest

from agentrl.chat.request import ChatRequest, Entry, Forced, RefusedError
from agentrl.engine import SGLangEngine
from agentrl.engine.base import GRAMMAR_CHANGED
from agentrl.episode.options import EpisodeOptions
from agentrl.gateway.session.session import Session
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from agentrl.types import Limits
from tests.engine.test_real_sglang import URL, model, renderer

__all__ = ["model", "renderer"]

PICK = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"], "additionalProperties": False}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": PICK}} for name in ("find", "look"))


@pytest.fixture
async def sglang():
    engine = SGLangEngine(URL)
    yield engine
    await engine.close()


def scores(model, prompt, tokens):
    """The model's own log-probs of the tokens, without a grammar."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].float().log_softmax(-1)
    at = torch.arange(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return logits[at, torch.tensor(tokens)].tolist()


async def test_log_probs_are_those_of_the_constrained_distribution(sglang, model, renderer):
    prompt = renderer.prompt([{"role": "user", "content": "Pick one."}]).tokens
    form = {"type": "json_schema", "json_schema": PICK}
    tag = json.dumps({"type": "structural_tag", "format": form})
    params = {"max_new_tokens": 60, "structural_tag": tag, "stop_token_ids": sorted(renderer.stop_token_ids)}
    for _ in range(5):
        found = await sglang.generate(prompt, params)
        free = scores(model, prompt, list(found.tokens))
        assert found.log_probs[0] == 0.0 > -1.0 > free[0]  # the first token can only be the brace
        for held, own, flag in zip(found.log_probs, free, found.constrained, strict=True):
            assert held >= own - 1e-3
            assert flag == (held - own >= GRAMMAR_CHANGED) or abs(held - own - GRAMMAR_CHANGED) < 1e-3


@pytest.mark.parametrize(
    ("forced", "names"),
    [
        (Forced(("find", "look")), {"find", "look"}),
        (Forced(("look",), parallel=False), {"look"}),
        (Forced((), PICK), None),
    ],
    ids=["required", "named", "response_format"],
)
async def test_a_session_gets_what_its_client_demands(sglang, renderer, forced, names):
    """Random weights would never do it by themselves."""
    session = Session("key")
    limits = Limits(turns=6, max_tokens_per_turn=200)
    session.play(sglang, renderer, EpisodeOptions(limits=limits), None, "s")
    whole = 0
    for number in range(6):
        entries = (Entry("user", f"Question {number}."),)
        exchange = session.ask(ChatRequest(wire="chat", entries=entries, tools=TOOLS, forced=forced))
        (reply,) = await exchange.replies()
        exchange.delivered()
        if reply.stop == "length":  # random weights like white space
            continue
        whole += 1
        if names is None:
            assert json.loads(reply.content)["x"] in ("a", "b")
        else:
            assert {call.name for call in reply.calls} <= names
            assert all(call.arguments["x"] in ("a", "b") for call in reply.calls)
            assert len(reply.calls) == 1 or forced.parallel
    assert whole
    session.close("done")
    session.write(trajectory := Trajectory())
    trajectory.verify()
    ledger = total_ledger(trajectory.segments)
    assert ledger.sampled == ledger.trained + sum(ledger.masked.values())
    assert set(ledger.masked) == {"constrained"}


async def test_a_schema_that_cannot_be_compiled_is_refused_and_the_session_goes_on(sglang, renderer):
    session = Session("key")
    session.play(sglang, renderer, EpisodeOptions(limits=Limits(turns=6, max_tokens_per_turn=8)), None, "s")
    wrong = Forced((), {"type": "object", "properties": {"x": {"type": "colour"}}})
    with pytest.raises(RefusedError, match="the engine refuses this form: ") as refused:
        await session.ask(ChatRequest(wire="chat", entries=(Entry("user", "Go."),), forced=wrong)).replies()
    assert refused.value.status == 400
    (reply,) = await session.ask(ChatRequest(wire="chat", entries=(Entry("user", "Go on."),))).replies()
    assert reply.usage.sampled > 0
    session.close("done")
