"""Grammars against a real SGLang: what its log-probs are, what is trained of an answer, and what it refuses.

.ci/sglang.sh starts one and runs these tests; see test_real_sglang.py.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import aiohttp
import pytest

from agentrl.chat.request import ChatRequest, Entry, Forced, RefusedError
from agentrl.chat.tokens.grammar import structural_tag
from agentrl.engine import SGLangEngine
from agentrl.engine.base import GRAMMAR_CHANGED
from agentrl.episode.options import EpisodeOptions
from agentrl.gateway.session.session import Session
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from agentrl.types import Limits
from tests.engine.real_sglang import MODEL, URL, local, model, renderer
from tests.render.markers import template_files

__all__ = ["local", "model", "renderer"]

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


OPEN, CLOSE = 3, 4
MARKS = frozenset(range(7))
NESTED = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}, "n": {"type": "number"}},
    "required": ["tags"],
    "$defs": {"t": {"enum": ["one", "日本"]}},
}
BUY = {"type": "object", "properties": {"what": {"type": "string"}, "size": {"enum": ["S", "L"]}}, "required": ["size"]}


def forms(renderer):
    """What clients demand, in several formats of calls, and free text with a form in it."""
    tools = [*TOOLS, {"type": "function", "function": {"name": "buy", "description": "Buy.", "parameters": BUY}}]
    bound = renderer.bind(tools)
    demands = {
        "response_format": Forced((), NESTED),
        "required": Forced(("find", "look", "buy")),
        "named": Forced(("look",), parallel=False),
        "either": Forced(("find",), PICK),
    }
    found = {name: structural_tag(bound, forced, tools, thinking=False) for name, forced in demands.items()}
    sources = {path.stem: path.read_text(encoding="utf-8") for path in template_files()}
    for name, end in (("Qwen3-Coder", "<|im_end|>"), ("ByteDance-Seed-OSS", "<seed:eos>")):
        other = load_tokenizer(MODEL)
        other.chat_template = sources[name].replace(end, "<|im_end|>")
        found[name] = structural_tag(load_renderer(other).bind(tools), Forced(("buy", "find")), tools, thinking=False)
    trigger = {"type": "tag", "begin": "b:", "content": {"type": "json_schema", "json_schema": PICK}, "end": "."}
    thought = [{"type": "any_tokens", "exclude_tokens": sorted(MARKS)}, {"type": "token", "token": CLOSE}]
    string = {"type": "json_schema", "json_schema": {"type": "string"}}
    formats = {
        "regex": {"type": "regex", "pattern": "no: (é|日本|[0-9]){1,4}"},
        "free text before": {"type": "sequence", "elements": thought},
        "trigger": {"type": "triggered_tags", "triggers": ["b"], "tags": [trigger]},
        "string": {"type": "sequence", "elements": [{"type": "token", "token": OPEN}, string]},
        "marks": {"type": "sequence", "elements": [{"type": "token", "token": mark} for mark in (OPEN, CLOSE)]},
        "marks in turn": {"type": "sequence", "elements": [{"type": "token", "token": mark} for mark in (CLOSE, OPEN)]},
    }
    return found | {name: json.dumps({"type": "structural_tag", "format": given}) for name, given in formats.items()}


class Replayed:
    """Draws the tokens of another engine, and keeps the distributions that they are drawn from."""

    def __init__(self, tokens):
        self.tokens, self.seen = list(tokens), []

    def __call__(self, logits, samplings, positions):
        (row,) = logits.float().log_softmax(-1)
        self.seen.append(row)
        token = self.tokens[len(self.seen) - 1]
        return [token], [float(row[token])]


@pytest.mark.timeout(300)
async def test_local_engine_samples_from_the_same_distribution(sglang, local, renderer, monkeypatch):
    """The whole distribution at each place, the flags and the end. Texts differ in one thing: SGLang lets marks in."""
    import torch

    pytest.importorskip("xgrammar", reason="LocalEngine's grammars need the package xgrammar")
    prompt = renderer.prompt([{"role": "user", "content": "Pick one."}]).tokens
    seen = SimpleNamespace(places=0, flags=set(), ends=set())
    for name, tag in forms(renderer).items():
        params = {"max_new_tokens": 24, "structural_tag": tag, "stop_token_ids": sorted(renderer.stop_token_ids)}
        async with aiohttp.ClientSession() as http, http.post(f"{URL}/flush_cache") as done:
            assert done.status == 200  # else SGLang's cache of grammars may take one form for another
        theirs = await sglang.generate(prompt, params, extra={"top_logprobs_num": len(load_tokenizer(MODEL))})
        monkeypatch.setattr("agentrl.engine.local.batch.draw", replayed := Replayed(theirs.tokens))
        if name == "string" and MARKS & set(theirs.tokens[1:-1]):
            continue  # LocalEngine would refuse the mark
        ours = await local.generate(prompt, params)
        assert (ours.tokens, ours.finish_reason, ours.matched) == (theirs.tokens, theirs.finish_reason, theirs.matched)
        same = True
        for place, row in zip(theirs.meta["output_top_logprobs"], replayed.seen, strict=True):
            full = torch.full_like(row, -math.inf)
            for log_prob, token, _ in place:
                full[token] = -math.inf if log_prob is None or log_prob < -1e30 else log_prob
            extra = set(torch.nonzero((full > -math.inf) & (row == -math.inf))[:, 0].tolist())
            assert extra <= (MARKS if name == "string" else set()), name
            assert not torch.any((full == -math.inf) & (row > -math.inf)), name
            same = same and not extra
            free = (full - full[row > -math.inf].logsumexp(0))[row > -math.inf]
            torch.testing.assert_close(free, row[row > -math.inf], atol=2e-5, rtol=0)
        if same:
            assert list(ours.log_probs) == pytest.approx(list(theirs.log_probs), abs=2e-5)
            assert list(ours.constrained) == list(theirs.constrained), name
        seen.places += len(replayed.seen)
        seen.flags |= set(ours.constrained)
        seen.ends.add(ours.finish_reason)
    assert seen.places > 100
    assert seen.flags == {True, False}
    assert seen.ends == {"stop", "length"}
