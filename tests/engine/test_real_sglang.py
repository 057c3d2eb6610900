"""The client against a real SGLang, and LocalEngine beside it: same tokens, same log-probs, same words for an ending.

Runs where one is up: AGENTRL_SGLANG_URL is its address, AGENTRL_SGLANG_MODEL the model folder it serves. A `tiny`
trained by `make demo` will do (`runs/demo/run/model`), which SGLang serves on a CPU with `--device cpu --dtype float32
--attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule --grammar-backend none`.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from agentrl import EngineError, Env, Limits, StopReason, Task, run_episode, tool
from agentrl.engine import SGLangEngine
from agentrl.models import load_model, load_tokenizer
from agentrl.render import load_renderer

URL, MODEL = os.environ.get("AGENTRL_SGLANG_URL", ""), os.environ.get("AGENTRL_SGLANG_MODEL", "")
pytestmark = pytest.mark.skipif(
    not (URL and MODEL), reason="set AGENTRL_SGLANG_URL and AGENTRL_SGLANG_MODEL to test against a real SGLang"
)
QUESTION = "What country is Lyon in?"


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL)


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(load_tokenizer(MODEL))


@pytest.fixture
async def sglang():
    engine = SGLangEngine(URL)
    yield engine
    await engine.close()


@pytest.fixture
async def local(model):
    from agentrl.engine import LocalEngine

    engine = LocalEngine(model, load_tokenizer(MODEL))
    yield engine
    await engine.close()


@pytest.fixture
def prompt(renderer):
    return list(renderer.prompt(QUESTION).tokens)


class Echo(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search."""
        return f"{query} is a city in France. Population 522250."

    async def score(self, trajectory):
        return 1.0


async def test_episodes_agree_token_for_token(sglang, local, renderer):
    def play(engine, n):
        task = Task(prompt=f"{QUESTION[:-1]}{'!' * n}?")
        limits = Limits(turns=3, turn_tokens=40, context=400)
        params = {"temperature": 0.0}
        return run_episode(Echo(), task, engine=engine, renderer=renderer, limits=limits, sampling_params=params)

    theirs = await asyncio.gather(*(play(sglang, n) for n in range(8)))
    ours = await asyncio.gather(*(play(local, n) for n in range(8)))
    for a, b in zip(theirs, ours, strict=True):
        assert (a.failure, a.tokens, a.loss_mask) == (None, b.tokens, b.loss_mask)
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-3)


@pytest.mark.parametrize("params", [{"temperature": 0.7}, {"temperature": 1.3, "top_k": 5}, {"top_p": 0.8}])
async def test_log_probs_are_of_the_tempered_distribution_before_truncation(sglang, model, prompt, params):
    import torch

    generation = await sglang.generate(prompt, {"temperature": 1.0, "max_new_tokens": 30, **params})
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *generation.tokens]])).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits / params.get("temperature", 1.0), -1)
    expected = expected.gather(1, torch.tensor(generation.tokens)[:, None])[:, 0]
    assert list(generation.log_probs) == pytest.approx(expected.tolist(), abs=1e-3)


async def test_both_engines_end_alike(sglang, local, renderer, prompt):
    greedy = {"temperature": 0.0, "max_new_tokens": 60}
    whole = list((await sglang.generate(prompt, greedy)).tokens)
    word = renderer.decode(whole[3:4])
    for limits in (
        {},
        {"max_new_tokens": 1},
        {"max_new_tokens": len(whole)},
        {"stop": [word]},
        {"stop_token_ids": [whole[3]]},
        {"max_new_tokens": 4, "stop": [word], "stop_token_ids": [whole[3]]},
    ):
        a, b = [await engine.generate(prompt, {**greedy, **limits}) for engine in (sglang, local)]
        assert (list(a.tokens), a.finish_reason, a.matched) == (list(b.tokens), b.finish_reason, b.matched), limits


async def test_abort_returns_what_was_sampled(sglang, prompt):
    params = {"temperature": 1.0, "max_new_tokens": 900, "ignore_eos": True}
    running = asyncio.create_task(sglang.generate(prompt, params, rid="r1"))
    await asyncio.sleep(0.5)
    await sglang.abort("r1")
    generation = await running
    assert generation.finish_reason == "abort"
    assert 0 < len(generation.tokens) == len(generation.log_probs) < 900


async def test_an_over_long_prompt_is_final_and_says_why(sglang):
    length = await sglang.context_length()
    with pytest.raises(EngineError, match=r"HTTP 400: .*longer than the model's context length"):
        await sglang.generate([5] * (length + 100), {"max_new_tokens": 10})


async def test_the_next_turn_finds_its_prefix_cached(sglang, renderer):
    limits, params = Limits(turns=2, turn_tokens=40, context=400), {"temperature": 0.0}
    t = await run_episode(
        Echo(), Task(prompt=QUESTION), engine=sglang, renderer=renderer, limits=limits, sampling_params=params
    )
    assert t.stop in (StopReason.DONE, StopReason.TURNS)
    assert t.turns[1].cached_tokens > 0.5 * t.turns[0].prompt_tokens
