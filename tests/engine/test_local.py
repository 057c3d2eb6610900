"""LocalEngine: exact log-probs, seeded tokens, stops, aborts, lockstep, weights, many loops."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.inside import worker_of

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.local import lockstep as lockstep_module  # noqa: E402
from agentrl.errors import ConfigError, EngineError, RequestError  # noqa: E402
from agentrl.models import tiny_model, tiny_tokenizer  # noqa: E402
from agentrl.types import Generation  # noqa: E402

TOKENIZER = tiny_tokenizer()
MODEL = tiny_model()
FREE = {"ignore_eos": True, "max_new_tokens": 12}
"""A random model ends a turn at random; this one never does."""


@pytest.fixture
async def engine() -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(MODEL, TOKENIZER)
    yield engine
    await engine.close()


def prompt(seed: int, length: int | None = None) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(len(TOKENIZER)) for _ in range(length or rng.randrange(2, 60))]


@torch.inference_mode()
def reference(ids: list[int], answer: Generation, temperature: float = 1.0, model: Any = MODEL) -> list[float]:
    """Log-probs of the answer under a plain forward pass over the whole sequence."""
    logits = model(torch.tensor([[*ids, *answer.tokens]])).logits[0, len(ids) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0].tolist()


def assert_exact(ids: list[int], answer: Generation, temperature: float = 1.0, model: Any = MODEL) -> None:
    assert list(answer.log_probs) == pytest.approx(reference(ids, answer, temperature, model), abs=1e-4)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it looks at changes in the worker thread
            await asyncio.sleep(0.002)


# Log-probs and tokens


@pytest.mark.thorough
async def test_log_probs_are_those_of_a_plain_forward_pass_for_every_batch_mate(engine: LocalEngine) -> None:
    async def one(i: int) -> None:
        await asyncio.sleep(random.Random(i).random() * 0.1)  # joins while others run
        ids = prompt(i)
        answer = await engine.generate(ids, {**FREE, "sampling_seed": i, "max_new_tokens": 1 + i % 17})
        assert len(answer.tokens) == 1 + i % 17  # leaves while others run
        assert_exact(ids, answer)

    await asyncio.gather(*map(one, range(50)))


@pytest.mark.parametrize("heads", [4, 2])
async def test_a_llama_with_grouped_heads_is_as_exact(heads: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=heads, max_position_embeddings=128, initializer_range=0.2, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    engine = LocalEngine(model, TOKENIZER, max_batch=3)
    answers = await asyncio.gather(*(engine.generate(prompt(i), {**FREE, "sampling_seed": i}) for i in range(7)))
    for i, answer in enumerate(answers):
        assert_exact(prompt(i), answer, model=model)
    await engine.close()


async def test_a_prompt_longer_than_a_prefill_pass_is_exact(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.engine.local.batch._PREFILL_TOKENS", 7)
    answers = await asyncio.gather(*(engine.generate(prompt(i, 5 + 9 * i), {**FREE}) for i in range(6)))
    for i, answer in enumerate(answers):
        assert_exact(prompt(i, 5 + 9 * i), answer)


async def test_temperature_scales_the_log_probs_and_truncation_does_not(engine: LocalEngine) -> None:
    ids = prompt(3)
    hot = await engine.generate(ids, {**FREE, "temperature": 1.7, "sampling_seed": 1})
    cut = await engine.generate(ids, {**FREE, "temperature": 0.8, "top_k": 5, "top_p": 0.7, "sampling_seed": 1})
    assert_exact(ids, hot, 1.7)
    assert_exact(ids, cut, 0.8)


async def test_greedy_equals_hugging_face_generate(engine: LocalEngine) -> None:
    ids = prompt(4)
    expected = MODEL.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=20
    )
    answer = await engine.generate(ids, {"temperature": 0, "max_new_tokens": 20})
    assert [*ids, *answer.tokens] == expected[0].tolist()
    assert_exact(ids, answer)


async def test_a_seed_decides_the_tokens_whatever_else_runs(engine: LocalEngine) -> None:
    params = {**FREE, "sampling_seed": 7}
    alone = await engine.generate(prompt(5), params)
    crowd = await asyncio.gather(
        *(engine.generate(prompt(5 + i % 9), {**params, "top_k": 40 * (i % 9)}) for i in range(30))
    )
    assert all(answer.tokens == alone.tokens for answer in crowd[::9])
    assert (await engine.generate(prompt(5), {**params, "sampling_seed": 8})).tokens != alone.tokens
    assert (await engine.generate(prompt(5), FREE)).tokens != (await engine.generate(prompt(5), FREE)).tokens


@pytest.mark.thorough
async def test_samples_follow_the_distribution(engine: LocalEngine) -> None:
    ids = prompt(6)
    one = {"ignore_eos": True, "max_new_tokens": 1, "temperature": 0.2}
    answers = await asyncio.gather(*(engine.generate(ids, {**one, "sampling_seed": i}) for i in range(1000)))
    counts = torch.bincount(torch.tensor([a.tokens[0] for a in answers]), minlength=len(TOKENIZER)) / len(answers)
    with torch.inference_mode():
        probs = torch.softmax(MODEL(torch.tensor([ids])).logits[0, -1] / 0.2, -1)
    assert probs.max() > 0.05
    assert (counts - probs).abs().max() < 0.05  # more than three standard deviations
    top = set(probs.topk(3).indices.tolist())
    answers = await asyncio.gather(*(engine.generate(ids, {**one, "top_k": 3, "sampling_seed": i}) for i in range(60)))
    assert {a.tokens[0] for a in answers} == top
    likeliest = await engine.generate(ids, {**one, "temperature": 1.0, "top_p": 1e-6})
    assert likeliest.tokens == [int(probs.argmax())]


# Ends


async def test_stop_token_and_eos_are_the_last_token(engine: LocalEngine) -> None:
    params = {**FREE, "sampling_seed": 3}
    tokens = list((await engine.generate(prompt(7), params)).tokens)
    stopped = await engine.generate(prompt(7), {**params, "stop_token_ids": [tokens[4]]})
    assert (stopped.tokens, stopped.finish_reason, stopped.matched) == (
        tokens[: tokens.index(tokens[4]) + 1],
        "stop",
        tokens[4],
    )
    eos = SimpleNamespace(eos_token_id=tokens[2], decode=TOKENIZER.decode)
    other = LocalEngine(MODEL, eos)
    assert (await other.generate(prompt(7), {"sampling_seed": 3})).matched == tokens[2]
    await other.close()


async def test_a_stop_string_ends_with_the_token_that_completes_it(engine: LocalEngine) -> None:
    params = {**FREE, "sampling_seed": 3}
    tokens = list((await engine.generate(prompt(7), params)).tokens)
    stop = TOKENIZER.decode(tokens[3:5]) + TOKENIZER.decode(tokens[5:6])[:1]
    answer = await engine.generate(prompt(7), {**params, "stop": ["never said", stop], "no_stop_trim": True})
    assert (answer.tokens, answer.finish_reason, answer.matched) == (tokens[:6], "stop", stop)
    assert len(answer.log_probs) == 6


async def test_length_is_the_tokens_asked_for_or_the_context() -> None:
    engine = LocalEngine(MODEL, TOKENIZER, max_context=40)
    assert await engine.context_length() == 40
    short = await engine.generate(prompt(8, 10), {**FREE, "max_new_tokens": 5})
    full = await engine.generate(prompt(8, 10), {"ignore_eos": True})
    none = await engine.generate(prompt(8, 10), {"max_new_tokens": 0})
    assert [(len(a.tokens), a.finish_reason) for a in (short, full, none)] == [
        (5, "length"),
        (30, "length"),
        (0, "length"),
    ]
    await engine.close()


async def test_a_parameter_it_cannot_honour_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(EngineError, match="min_p"):
        await engine.generate(prompt(9), {"min_p": 0.5})


@pytest.mark.parametrize(
    ("ids", "says"),
    [([], "empty"), ([1] * 1024, "1024 tokens; the context holds 1024"), ([99999], "outside"), ([-1], "outside")],
)
async def test_a_prompt_that_cannot_be_continued_is_refused(engine: LocalEngine, ids: list[int], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        await engine.generate(ids, {})


def test_a_model_that_it_cannot_batch_is_refused() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="sliding_attention"):
        LocalEngine(model, TOKENIZER)
    with pytest.raises(ConfigError, match="4096, but the model holds only 1024"):
        LocalEngine(MODEL, TOKENIZER, max_context=4096)


async def test_a_failing_forward_pass_fails_its_requests_and_not_the_engine(
    engine: LocalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    hook = MODEL.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await asyncio.gather(*(engine.generate(prompt(i), FREE) for i in range(3)))
    hook.remove()
    assert_exact(prompt(1), await engine.generate(prompt(1), FREE))


# Abort, cancellation, close


@pytest.mark.thorough
async def test_abort_keeps_what_was_sampled_and_continuing_gives_the_same_tokens(engine: LocalEngine) -> None:
    params: Any = {"ignore_eos": True, "sampling_seed": 11, "max_new_tokens": 300}
    whole = await engine.generate(prompt(10), params)
    running = asyncio.create_task(engine.generate(prompt(10), params, session_id="s", rid="mine"))
    other = asyncio.create_task(engine.generate(prompt(11), params, rid="other"))
    await until(lambda: any(len(r.log_probs) > 5 for r in worker_of(engine).running))
    await engine.abort("mine")
    part = await running
    assert part.finish_reason == "abort"
    assert 5 < len(part.tokens) < 300
    assert len((await other).tokens) == 300
    rest = {**params, "max_new_tokens": 300 - len(part.tokens)}
    again = await engine.generate([*prompt(10), *part.tokens], rest, session_id="s")
    assert again.cached_tokens == len(prompt(10)) + len(part.tokens) - 1
    assert [*part.tokens, *again.tokens] == whole.tokens
    assert [*part.log_probs, *again.log_probs] == pytest.approx(whole.log_probs, abs=1e-4)


async def test_abort_of_all_ends_those_that_wait_too() -> None:
    engine = LocalEngine(MODEL, TOKENIZER, max_batch=2)
    tasks = [asyncio.create_task(engine.generate(prompt(i), {"ignore_eos": True})) for i in range(6)]
    await until(lambda: sum(bool(r.log_probs) for r in worker_of(engine).running) == 2)
    await engine.abort()
    answers = await asyncio.gather(*tasks)
    assert [a.finish_reason for a in answers] == ["abort"] * 6
    assert sum(bool(a.tokens) for a in answers) == 2
    await engine.close()


async def test_a_cancelled_caller_leaves_no_request(engine: LocalEngine) -> None:
    task = asyncio.create_task(engine.generate(prompt(12), {"ignore_eos": True}))
    await until(lambda: bool(worker_of(engine).batch.requests))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not worker_of(engine).batch.requests and not worker_of(engine).running)
    assert_exact(prompt(1), await engine.generate(prompt(1), FREE))


async def test_close_ends_running_and_waiting_requests_with_an_error() -> None:
    engine = LocalEngine(MODEL, TOKENIZER, max_batch=2)
    tasks = [asyncio.create_task(engine.generate(prompt(i), {"ignore_eos": True})) for i in range(5)]
    await until(lambda: bool(worker_of(engine).running))
    await engine.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(r, EngineError) and "closed" in str(r) for r in results)
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(prompt(1), FREE)
    await LocalEngine(MODEL, TOKENIZER).close()  # never used


# Concurrency


@pytest.mark.thorough
async def test_two_hundred_requests_share_a_small_batch() -> None:
    engine = LocalEngine(MODEL, TOKENIZER, max_batch=16)
    answers = await asyncio.gather(*(engine.generate(prompt(i), {**FREE, "sampling_seed": i}) for i in range(200)))
    for i in range(0, 200, 20):
        assert_exact(prompt(i), answers[i])
    assert all(len(a.tokens) == 12 for a in answers)
    await engine.close()


def test_event_loops_share_an_engine() -> None:
    engine = LocalEngine(MODEL, TOKENIZER)
    answers: list[list[Generation]] = []

    async def many() -> list[Generation]:
        return await asyncio.gather(*(engine.generate(prompt(i), {**FREE, "sampling_seed": i}) for i in range(10)))

    threads = [threading.Thread(target=lambda: answers.append(asyncio.run(many()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(answers) == 3
    assert len({tuple(tuple(a.tokens) for a in loop) for loop in answers}) == 1
    asyncio.run(engine.close())


# Sessions


async def test_a_session_prefills_only_what_is_new(engine: LocalEngine) -> None:
    async def play(i: int) -> None:
        ids, rng, computed = prompt(i), random.Random(i), 0
        params = {**FREE, "sampling_seed": i, "max_new_tokens": 3 + i}
        for _ in range(4):
            await asyncio.sleep(rng.random() * 0.02)
            answer = await engine.generate(ids, params, session_id=f"s{i}")
            assert_exact(ids, answer)
            assert answer.cached_tokens == computed
            computed = len(ids) + len(answer.tokens) - 1
            ids = [*ids, *answer.tokens, *prompt(100 + i, 5)]

    await asyncio.gather(*map(play, range(12)))


async def test_a_session_that_departs_from_its_past_reuses_only_what_is_equal(engine: LocalEngine) -> None:
    ids = prompt(20, 30)
    await engine.generate(ids, FREE, session_id="s")
    changed = [*ids[:10], (ids[10] + 1) % 600, *ids[11:]]
    answer = await engine.generate(changed, FREE, session_id="s")
    assert answer.cached_tokens == 10
    assert_exact(changed, answer)
    assert (await engine.generate(changed[:8], FREE, session_id="s")).cached_tokens == 7


async def test_the_least_recently_used_session_is_forgotten() -> None:
    engine = LocalEngine(MODEL, TOKENIZER, max_batch=3)
    for session in "abcad":  # b is the oldest when d needs a slot
        await engine.generate(prompt(21, 20), FREE, session_id=session)
    cached = {s: (await engine.generate(prompt(21, 20), FREE, session_id=s)).cached_tokens for s in "dacb"}
    assert cached == {"d": 19, "a": 19, "c": 19, "b": 0}
    await engine.close()


# Weights


async def test_new_weights_change_answers_and_version_and_empty_the_prefix_cache() -> None:
    model = tiny_model()
    engine = LocalEngine(model, TOKENIZER)
    params = {**FREE, "sampling_seed": 1}
    before = await engine.generate(prompt(30), params, session_id="s")
    engine.load_weights(tiny_model(seed=5).state_dict(), "1")
    after = await engine.generate(prompt(30), params, session_id="s")
    assert (before.weight_version, after.weight_version, after.cached_tokens) == ("0", "1", 0)
    assert after.tokens != before.tokens
    assert_exact(prompt(30), after, model=model)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.5)  # what a trainer does, by reference
    engine.weight_version = "2"
    last = await engine.generate(prompt(30), params, session_id="s")
    assert (last.weight_version, last.cached_tokens) == ("2", 0)
    assert_exact(prompt(30), last, model=model)
    await engine.close()


@pytest.mark.thorough
async def test_a_running_request_goes_on_with_new_weights_and_leaves_no_stale_prefix() -> None:
    engine, weights = LocalEngine(tiny_model(), TOKENIZER), tiny_model(seed=5).state_dict()
    running = asyncio.create_task(
        engine.generate(prompt(31), {"ignore_eos": True, "max_new_tokens": 400}, session_id="s")
    )
    await until(lambda: any(r.log_probs for r in worker_of(engine).running))
    engine.load_weights(weights, "1")
    answer = await running
    assert (len(answer.tokens), answer.weight_version) == (400, "1")
    again = await engine.generate([*prompt(31), *answer.tokens], FREE, session_id="s")
    assert again.cached_tokens == 0
    await engine.close()


def test_weights_that_do_not_fit_change_nothing() -> None:
    model = tiny_model()
    engine = LocalEngine(model, TOKENIZER)
    weights = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(EngineError, match=f"{name}: found shape \\(1, 2\\)"):
        engine.load_weights({**weights, name: torch.zeros(1, 2)}, "1")
    del weights[name]
    with pytest.raises(EngineError, match=f"{name}: found nothing"):
        engine.load_weights(weights, "1")
    assert engine.weight_version == "0"
    assert model.model.embed_tokens.weight.abs().sum() > 0


async def test_a_head_of_its_own_is_not_dropped_where_the_model_ties_it() -> None:
    engine, weights = LocalEngine(tiny_model(), TOKENIZER), tiny_model(seed=5).state_dict()
    with pytest.raises(EngineError, match=r"lm_head.weight and model.embed_tokens.weight differ, and this model ties"):
        engine.load_weights({**weights, "lm_head.weight": weights["lm_head.weight"] + 1}, "1")
    with pytest.raises(EngineError, match=r"model.layers.2.x.weight .1 such.: the model has no such tensor"):
        engine.load_weights({**weights, "model.layers.2.x.weight": torch.zeros(1)}, "1")
    assert engine.weight_version == "0"
    del weights["lm_head.weight"]
    engine.load_weights(weights, "1")
    assert engine.weight_version == "1"


async def test_buffers_are_weights_too_and_the_models_own_tensors_stay() -> None:
    model = tiny_model()
    model.model.register_buffer("bias_of_experts", torch.zeros(3))
    engine = LocalEngine(model, TOKENIZER)
    engine.load_weights({**model.state_dict(), "model.bias_of_experts": torch.ones(3)}, "1")
    assert model.model.bias_of_experts.tolist() == [1.0, 1.0, 1.0]
    engine.load_weights(model.state_dict(), "2")
    assert engine.weight_version == "2"


class _Wrapped(torch.nn.Module):
    """As peft wraps a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = model


@pytest.mark.parametrize("wrap", [lambda model: model, _Wrapped])
async def test_an_update_by_its_own_model_takes_the_weights_as_they_are(wrap: Any) -> None:
    model = tiny_model()
    engine, params = LocalEngine(model, TOKENIZER), {**FREE, "sampling_seed": 1}
    before = await engine.generate(prompt(30), params, session_id="s")
    await engine.sleep()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.5)
    await engine.wake()
    await engine.update(wrap(model.train()), "7")
    after = await engine.generate(prompt(30), params, session_id="s")
    assert (before.weight_version, after.weight_version, after.cached_tokens) == ("0", "7", 0)
    assert not model.training
    assert_exact(prompt(30), after, model=model)
    await engine.close()


async def test_an_update_by_another_model_copies_its_weights() -> None:
    engine = LocalEngine(tiny_model(), TOKENIZER)
    other = tiny_model(seed=5)
    await engine.update(other, "1")
    answer = await engine.generate(prompt(30), {**FREE, "sampling_seed": 1})
    assert answer.weight_version == "1"
    assert_exact(prompt(30), answer, model=other)
    await engine.close()


# Lockstep


async def waves(engine: LocalEngine, jitter: int, episodes: int = 20) -> list[list[Generation]]:
    """Episodes of one to four turns with delays that differ from run to run, and session ids that do too."""
    delays = random.Random(jitter)
    order = list(range(episodes))
    delays.shuffle(order)
    sessions = ["" if i % 3 == 0 else str(delays.random()) for i in range(episodes)]

    async def play(i: int) -> list[Generation]:
        ids, turns, answers = prompt(i), 1 + i % 4, []
        for turn in range(turns):
            await asyncio.sleep(delays.random() * 0.02)
            params: Any = {**FREE, "sampling_seed": i, "max_new_tokens": 2 + (7 * i + turn) % 11}
            answers.append(await engine.generate(ids, params, session_id=sessions[i]))
            ids = [*ids, *answers[-1].tokens, *prompt(200 + i, 4)]
        return answers

    with engine.lockstep(episodes) as lockstep:

        async def live(i: int) -> tuple[int, list[Generation]]:
            with lockstep.episode():
                return i, await play(i)

        return [answers for _, answers in sorted(await asyncio.gather(*map(live, order)), key=lambda pair: pair[0])]


@pytest.mark.thorough
@pytest.mark.parametrize("max_batch", [64, 6])
async def test_lockstep_is_bit_identical_whatever_the_timing(max_batch: int) -> None:
    def facts(runs: list[list[Generation]]) -> list[list[tuple[Any, ...]]]:
        return [[(a.tokens, a.log_probs, a.finish_reason) for a in answers] for answers in runs]

    engine = LocalEngine(MODEL, TOKENIZER, max_batch=max_batch)
    await engine.generate(prompt(1), FREE, session_id="0-")  # an earlier life must not matter
    first = await waves(engine, jitter=1)
    fresh = LocalEngine(MODEL, TOKENIZER, max_batch=max_batch)
    assert facts(await waves(engine, jitter=2)) == facts(first)
    assert facts(await waves(fresh, jitter=3)) == facts(first)
    await engine.close()
    await fresh.close()


async def test_a_wave_waits_for_every_episode(engine: LocalEngine) -> None:
    with engine.lockstep(2) as lockstep:
        first = asyncio.create_task(engine.generate(prompt(1), FREE))
        await asyncio.sleep(0.2)
        assert not first.done()
        with lockstep.episode():
            assert lockstep.alive == 2
            second = await engine.generate(prompt(2), FREE)
        assert lockstep.alive == 1
        assert len(second.tokens) == len((await first).tokens) == 12
    await engine.generate(prompt(3), FREE)  # continuous again


async def test_episodes_that_fail_or_are_cancelled_hold_nobody_up(engine: LocalEngine) -> None:
    async def play(i: int) -> int:
        with lockstep.episode():
            if i == 1:
                raise KeyError("a bug before the first turn")
            await engine.generate(prompt(i), FREE)
            if i == 2:
                raise KeyError("a bug after the first turn")
            if i == 3:
                async with asyncio.timeout(0.2):  # cancelled while it waits for 4, which is slow
                    await engine.generate(prompt(i), FREE)
            if i == 4:
                await asyncio.sleep(0.5)
            if i == 5:
                await engine.generate([], {})  # refused
            await engine.generate(prompt(i), FREE)
            return i

    with engine.lockstep(8) as lockstep:
        async with asyncio.timeout(30):
            results = await asyncio.gather(*map(play, range(8)), return_exceptions=True)
    assert [r for r in results if isinstance(r, int)] == [0, 4, 6, 7]
    assert [type(results[i]) for i in (1, 2, 3, 5)] == [KeyError, KeyError, TimeoutError, RequestError]


async def test_abort_ends_a_wave_that_waits(engine: LocalEngine) -> None:
    with engine.lockstep(3):
        tasks = [asyncio.create_task(engine.generate(prompt(i), FREE)) for i in range(2)]
        await until(lambda: len(worker_of(engine).waiting) == 2)
        await engine.abort()
        assert [(a.finish_reason, a.tokens) for a in await asyncio.gather(*tasks)] == [("abort", [])] * 2


async def test_a_stuck_wave_says_who_is_missing(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lockstep_module, "STUCK_S", 0.02)

    async def play(i: int) -> None:
        with lockstep.episode():
            await engine.generate(prompt(i), FREE)
            if i == 1:
                await gone_on.wait()  # for another episode, which no episode should
            await engine.generate(prompt(i), FREE)
            gone_on.set()

    gone_on = asyncio.Event()
    with engine.lockstep(2) as lockstep, caplog.at_level(logging.WARNING):
        async with asyncio.timeout(20):
            await asyncio.gather(play(0), play(1))
    assert "1 episodes wait for their turn; the rest of the 2 alive neither ask nor end; continuing" in caplog.text


async def test_lockstep_is_refused_where_it_could_not_be_kept(engine: LocalEngine) -> None:
    with engine.lockstep(1) as lockstep:
        with pytest.raises(EngineError, match="idle"), engine.lockstep(1):
            raise AssertionError
        with lockstep.episode():
            await engine.generate(prompt(1), FREE)
        with pytest.raises(ValueError, match="expected 1"), lockstep.episode():
            raise AssertionError
    task = asyncio.create_task(engine.generate(prompt(1), {"ignore_eos": True}))
    await until(lambda: bool(worker_of(engine).running))
    with pytest.raises(EngineError, match="idle"), engine.lockstep(1):
        raise AssertionError
    task.cancel()
