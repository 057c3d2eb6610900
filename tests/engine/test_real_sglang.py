"""The client against a real SGLang, and LocalEngine beside it: same tokens, same log-probs, same words for an ending.

.ci/sglang.sh starts one and runs these tests. With an SGLang of your own, AGENTRL_SGLANG_URL is its address and
AGENTRL_SGLANG_MODEL the model folder it serves, in float32; random weights will do.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agentrl import EngineError, Env, Limits, StepResult, StopReason, Task, run_episode
from agentrl.engine import SGLangEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.models import load_tokenizer
from tests.engine.real_sglang import MODEL, URL
from tests.engine.real_sglang import local as local
from tests.engine.real_sglang import model as model
from tests.engine.real_sglang import renderer as renderer

SOMETIMES = list(range(8, 1024, 16))
"""Stop tokens that random weights meet every 16th token or so."""
QUESTION = "What country is Lyon in?"


@pytest.fixture
async def sglang():
    engine = SGLangEngine(URL)
    yield engine
    await engine.close()


@pytest.fixture
def prompt(renderer):
    return list(renderer.prompt(QUESTION).tokens)


class Chat(Env):
    """Three turns, whatever the model says."""

    async def step(self, action):
        self.turns = getattr(self, "turns", 0) + 1
        return StepResult(f"You have said {len(action.text)} characters.", done=self.turns == 3)

    async def score(self, trajectory):
        return 1.0


async def test_episodes_agree_token_for_token(sglang, local, renderer):
    def play(engine, n):
        task = Task(prompt=f"{QUESTION[:-1]}{'!' * n}?")
        limits = Limits(max_tokens_per_turn=40, context=400)
        # What is greedy repeats itself: only stops this frequent let some episodes come to a third turn.
        params = {"temperature": 0.0, "stop_token_ids": list(range(9, 1024, 2))}
        return run_episode(
            Chat(),
            task,
            engine=engine,
            renderer=renderer,
            options=EpisodeOptions(limits=limits, sampling_params=params),
        )

    theirs = await asyncio.gather(*(play(sglang, n) for n in range(8)))
    ours = await asyncio.gather(*(play(local, n) for n in range(8)))
    assert max(len(trajectory.turns) for trajectory in theirs) == 3
    for a, b in zip(theirs, ours, strict=True):
        assert (a.failure, a.tokens, a.loss_mask) == (None, b.tokens, b.loss_mask)
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-3)


def rescored(model, prompt, tokens, temperature=1.0):
    """Log-probs of `tokens` behind `prompt`, by Hugging Face."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits / temperature, -1)
    return expected.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("params", [{"temperature": 0.7}, {"temperature": 1.3, "top_k": 5}, {"top_p": 0.8}])
async def test_log_probs_are_of_the_tempered_distribution_before_truncation(sglang, model, prompt, params):
    generation = await sglang.generate(prompt, {"temperature": 1.0, "max_new_tokens": 30, **params})
    expected = rescored(model, prompt, generation.tokens, params.get("temperature", 1.0))
    assert list(generation.log_probs) == pytest.approx(expected, abs=1e-3)


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


async def test_abort_returns_what_was_sampled_and_it_can_go_on(sglang, model, prompt):
    params = {"temperature": 1.0, "max_new_tokens": 900, "ignore_eos": True}
    running = asyncio.create_task(sglang.generate(prompt, params, rid="r1"))
    await asyncio.sleep(0.5)
    await sglang.abort("r1")
    part = await running
    assert part.finish_reason == "abort"
    assert 0 < len(part.tokens) == len(part.log_probs) < 900
    rest = await sglang.generate([*prompt, *part.tokens], {**params, "max_new_tokens": 20})
    assert (
        rest.cached_tokens >= len(prompt) + len(part.tokens) - 2
    )  # the last token sampled was no input yet, and a page of one
    tokens, log_probs = [*part.tokens, *rest.tokens], [*part.log_probs, *rest.log_probs]
    assert log_probs == pytest.approx(rescored(model, prompt, tokens), abs=1e-4)


@asynccontextmanager
async def queueing():
    """A router that holds each request back for half a second, before the real worker."""

    async def workers(request):
        return web.json_response({"workers": [{"url": URL}]})

    async def generate(request):
        body = await request.read()
        await asyncio.sleep(0.5)
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{URL}/generate", data=body, headers={"Content-Type": "application/json"}) as response,
        ):
            return web.Response(body=await response.read(), status=response.status)

    app = web.Application()
    app.add_routes([web.get("/workers", workers), web.post("/generate", generate)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = SGLangEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


async def test_an_abort_that_overtakes_its_request_is_not_lost(prompt):
    """The worker answers 200 to the first, and forgets it."""
    params = {"temperature": 1.0, "max_new_tokens": 900, "ignore_eos": True}
    async with queueing() as engine:
        running = asyncio.create_task(engine.generate(prompt, params, rid="r1"))
        await asyncio.sleep(0.1)
        await engine.abort("r1")
        assert (await running).finish_reason == "abort"


async def test_abort_all_reaches_what_is_queued(sglang, prompt):
    params = {"temperature": 1.0, "max_new_tokens": 900, "ignore_eos": True}
    running = [asyncio.create_task(sglang.generate(prompt, params)) for _ in range(32)]
    await asyncio.sleep(0.05)
    await sglang.abort()
    assert {generation.finish_reason for generation in await asyncio.gather(*running)} == {"abort"}


async def test_an_over_long_prompt_is_final_and_says_why(sglang):
    length = await sglang.context_length()
    with pytest.raises(EngineError, match=r"HTTP 400: .*longer than the model's context length"):
        await sglang.generate([5] * (length + 100), {"max_new_tokens": 10})


async def test_the_next_turn_finds_its_prefix_cached(sglang, renderer):
    t = await run_episode(
        Chat(),
        Task(prompt=QUESTION),
        engine=sglang,
        renderer=renderer,
        options=EpisodeOptions(
            limits=Limits(max_tokens_per_turn=200, context=900),
            sampling_params={"temperature": 1.0, "stop_token_ids": SOMETIMES},
        ),
    )
    assert (t.stop, len(t.turns)) == (StopReason.DONE, 3)
    for before, turn in zip(t.turns, t.turns[1:], strict=False):
        assert turn.cached_tokens >= before.prompt_tokens + before.sampled_tokens - 2


async def test_nothing_asked_is_nothing_sampled(sglang, prompt):
    """SGLang sends the log-prob of one token all the same."""
    generation = await sglang.generate(prompt, {"temperature": 1.0, "max_new_tokens": 0})
    assert (list(generation.tokens), generation.finish_reason) == ([], "length")


async def test_what_is_typed_and_what_is_left_as_it_came(sglang, prompt):
    generation = await sglang.generate(prompt, {"temperature": 1.0, "max_new_tokens": 5, "ignore_eos": True})
    assert generation.weight_version == "default"
    assert generation.meta["completion_tokens"] == len(generation.tokens) == len(generation.log_probs) == 5
    assert generation.meta["prompt_tokens"] == len(prompt)
    assert "output_token_logprobs" not in generation.meta


async def test_a_teacher_scores_as_transformers_does(model, sglang, renderer):
    """Its own tokens are recognised, those of a student with another tokenizer are not."""
    from agentrl.errors import ConfigError
    from agentrl.train import TrainConfig
    from agentrl.train.teacher import LoadedTeacher, ServedTeacher, rows_of

    config = TrainConfig.make(env="none.py:None", out="none", teacher=URL)
    server, loaded = ServedTeacher(config.teacher, 8), LoadedTeacher(model, config, config.teacher)
    tokenizer, options = load_tokenizer(MODEL), EpisodeOptions(limits=Limits(turns=3, max_tokens_per_turn=8))
    try:
        await server.check(tokenizer)
        played = []
        for _ in range(40):  # often with the last id of the vocabulary, which SGLang reports as 0
            trajectory = await run_episode(
                Chat(), Task(prompt=QUESTION), engine=sglang, renderer=renderer, options=options
            )
            assert trajectory.is_valid, trajectory.failure
            if sum(trajectory.loss_mask) > 2:
                played.append(trajectory)
        assert len(played) >= 20
        await server.ask(played)
        loaded.read(played)
        for trajectory in played:
            (one,), (other,) = (by.teach(trajectory, rows_of(trajectory)) for by in (server, loaded))
            assert len(one.positions) > 2
            assert one.weights == pytest.approx(other.weights, abs=1e-4)

        class Odd:
            all_special_ids = tokenizer.all_special_ids

            def decode(self, tokens):
                return tokenizer.decode(tokens).swapcase()

            def get_vocab(self):
                return tokenizer.get_vocab()

        with pytest.raises(ConfigError, match="has another vocabulary than the student"):
            await server.check(Odd())
    finally:
        await server.close()
