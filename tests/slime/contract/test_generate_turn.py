"""slime 0.4's helper for turns as an oracle: the same prompts through `generate_turn` and through `agentrl.adapt`.

The helper appends to a Sample what the engine returns. A turn that a weight update cuts is asked for again, as adapt
does. Tokens that no model sampled are taken from adapt's sample, since the helper renders nothing.
"""

from __future__ import annotations

import base64
import importlib
import json
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from tests.slime.player import Player

LAYERS, TOPK = 3, 2
R3 = {"use_rollout_routing_replay": True, "num_layers": LAYERS, "moe_router_topk": TOPK, "num_experts": 8}


@pytest.fixture
def turns(host, monkeypatch) -> Any:
    """The module of the helper: a file of its own where slime's files were gathered."""
    found = host.turns
    host.need(found, "helper for turns")
    monkeypatch.setattr(found, "_TURN_RESUME_DELAY", 0.01)
    return found


class Updated(Player):
    """Weights change between requests, and often within an answer: both are decided by the prompt."""

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        said = replace(said, weight_version=str(len(input_ids) % 5))
        if len(input_ids) % 3 or len(said.tokens) < 4:
            return said
        half = len(said.tokens) // 2
        return replace(said, tokens=said.tokens[:half], log_probs=said.log_probs[:half], finish_reason="abort")


@web.middleware
async def with_experts(request: web.Request, handler: Any) -> web.StreamResponse:
    """What SGLang returns of routes: those of each token but the last, from routed_experts_start_len on."""
    if request.path != "/generate":
        return await handler(request)
    body = await request.json()
    assert body.pop("return_routed_experts") is True
    start = body.pop("routed_experts_start_len", 0)
    request._read_bytes = json.dumps(body).encode()
    response = await handler(request)
    answer = json.loads(response.body)
    tokens = [token for _, token, *_ in answer["meta_info"]["output_token_logprobs"]]
    seen = [*body["input_ids"], *tokens][start:-1]
    routes = np.asarray([(token + k) % 8 for token in seen for k in range(LAYERS * TOPK)], np.int32)
    answer["meta_info"]["routed_experts"] = base64.b64encode(routes.tobytes()).decode()
    return web.json_response(answer)


async def _by_the_helper(turns: Any, run: Any, sample: Any) -> Any:
    """The sample's episode again, by slime's helper."""
    prompt = sample.tokens[: len(sample.tokens) - sample.response_length]
    again = run.host.Sample(index=sample.index, session_id=sample.session_id, tokens=list(prompt))
    response = zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True)
    params = {**run.host.rollout.GenerateState(run.args).sampling_params, "max_new_tokens": 500}
    for sampled, group in groupby(response, key=lambda pair: pair[1]):
        if sampled:
            await turns.generate_turn(run.args, again, params)
        else:
            again.append_response_tokens(run.args, tokens=[token for token, _ in group], trainable=False)
    return again


@pytest.mark.path("slime's helper for turns gives the same sample")
def test_adapt_writes_what_slimes_helper_writes(host, turns, start, rows, renderer, monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "pybase64", base64)
    engine = Updated(renderer)
    run = start(rows(), engine=engine, middlewares=(with_experts,), **R3)
    samples, _ = run.samples()
    assert len(samples) == 8
    cuts = 0
    for sample in samples:
        theirs = run.host.run(_by_the_helper(turns, run, sample))
        assert theirs.tokens == sample.tokens
        assert theirs.response_length == sample.response_length
        assert theirs.loss_mask == sample.loss_mask
        assert theirs.rollout_log_probs == pytest.approx(sample.rollout_log_probs, abs=0)
        assert theirs.weight_versions == sample.weight_versions
        assert theirs.status == sample.status
        experts = theirs.materialize_rollout_routed_experts()
        assert experts.tolist() == sample.rollout_routed_experts[: len(experts)].tolist()
        assert sample.tokens[len(experts) + 1 :] == [] or not any(sample.loss_mask[-1:]), "the rest has no loss"
        cuts += len(sample.weight_versions) - sample.metadata["agentrl"]["turns"]
    assert cuts > 0, "weights changed within turns"
