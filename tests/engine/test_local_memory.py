"""Keys and values: memory follows what is alive, is given back, and rows of very unequal length stay exact."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.engine.inside import worker_of

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.models import tiny_model, tiny_tokenizer  # noqa: E402
from agentrl.types import Generation  # noqa: E402

TOKENIZER, MODEL = tiny_tokenizer(), tiny_model()
TOKEN_BYTES = 2 * 2 * 128 * 4
"""Of tiny: keys and values, two layers, 128 numbers, float32."""


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks above 16 kB are large, so that tiny behaves as a large model does."""
    for module in ("kv_cache", "batch"):
        monkeypatch.setattr(f"agentrl.engine.local.{module}.SMALL_BYTES", 16 << 10)


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(len(TOKENIZER)) for _ in range(length)]


def alive(engine: LocalEngine) -> int:
    """Tokens of running rows and of kept sessions."""
    batch = worker_of(engine).batch
    return sum(len(row.tokens) for row in batch.requests) + sum(
        len(session.tokens) for session in batch.sessions.values()
    )


async def ask(engine: LocalEngine, ids: list[int], count: int, session: str = "", seed: int = 1) -> Generation:
    params: Any = {"ignore_eos": True, "max_new_tokens": count, "sampling_seed": seed}
    answer = await engine.generate(ids, params, session_id=session)
    with torch.inference_mode():
        logits = MODEL(torch.tensor([[*ids, *answer.tokens]])).logits[0, len(ids) - 1 : -1]
    wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert list(answer.log_probs) == pytest.approx(wanted.tolist(), abs=1e-4)
    return answer


@pytest.mark.thorough
@pytest.mark.usefixtures("_small")
async def test_one_long_prompt_among_short_sessions_costs_what_it_holds() -> None:
    """The issue's case: 32 sessions of two tokens, kept or running, and one prompt of 900."""
    async with LocalEngine(MODEL, TOKENIZER) as engine:
        batch, highest = worker_of(engine).batch, 0.0
        step = batch.step

        def measured() -> Any:
            nonlocal highest
            outcomes = step()
            highest = max(highest, batch.memory_bytes / TOKEN_BYTES)
            return outcomes

        batch.step = measured  # type: ignore[method-assign]
        await asyncio.gather(*(ask(engine, prompt(i, 2), 2, f"kept{i}") for i in range(32)))
        await asyncio.gather(
            ask(engine, prompt(1, 900), 40), *(ask(engine, prompt(i, 2), 30, f"kept{i}", i) for i in range(31))
        )
        held = 940 + 32 * 32
        assert highest < 3 * held + 32 * 64, "a slot each as long as the longest would be 33 * 1024"


async def test_a_long_prompt_after_many_short_ones_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    small = 8 << 20  # the block of 32 short rows is kept for the next wave, which is one long row
    for module in ("kv_cache", "batch"):
        monkeypatch.setattr(f"agentrl.engine.local.{module}.SMALL_BYTES", small)
    async with LocalEngine(MODEL, TOKENIZER) as engine:
        batch = worker_of(engine).batch
        await asyncio.gather(*(ask(engine, prompt(i, 2), 2) for i in range(32)))
        with worker_of(engine).between_steps():
            task = asyncio.create_task(ask(engine, prompt(1, 900), 3))
            await asyncio.sleep(0)
        highest = 0
        while not task.done():
            highest = max(highest, batch.memory_bytes)
            await asyncio.sleep(0)
        await task
        assert 0 < highest <= small


@pytest.mark.usefixtures("_small")
async def test_memory_is_given_back() -> None:
    async with LocalEngine(MODEL, TOKENIZER) as engine:
        batch = worker_of(engine).batch
        await asyncio.gather(*(ask(engine, prompt(i, 300), 3, f"s{i}") for i in range(20)))
        assert len(batch.sessions) == 20
        assert batch.memory_bytes == alive(engine) * TOKEN_BYTES, "what is kept for sessions, and nothing else"
        engine.weight_version = "1"
        assert batch.memory_bytes == 0
    assert batch.memory_bytes == 0


async def test_small_blocks_stay_for_the_next_wave() -> None:
    async with LocalEngine(MODEL, TOKENIZER) as engine:
        await asyncio.gather(*(ask(engine, prompt(i, 30), 3) for i in range(20)))
        block = worker_of(engine).batch.groups[0].block
        await asyncio.gather(*(ask(engine, prompt(i, 30), 3) for i in range(20)))
        assert worker_of(engine).batch.groups[0].block is block


@pytest.mark.thorough
@pytest.mark.usefixtures("_small")
async def test_rows_that_come_leave_and_grow_across_length_classes_stay_exact() -> None:
    async with LocalEngine(MODEL, TOKENIZER, max_batch=12) as engine:
        splits = set()
        arrange = worker_of(engine).batch.arrange

        def watched(*args: Any) -> None:
            arrange(*args)
            splits.add(len([group for group in worker_of(engine).batch.groups.values() if group.rows]))

        worker_of(engine).batch.arrange = watched  # type: ignore[method-assign]

        async def play(i: int) -> None:
            rng = random.Random(i)
            ids = prompt(i, rng.choice([2, 3, 60, 300]))
            for _ in range(3):
                await asyncio.sleep(rng.random() * 0.05)
                answer = await ask(engine, ids, rng.choice([2, 10, 80]), f"s{i}", i)
                ids = [*ids, *answer.tokens, *prompt(i, 5)]

        await asyncio.gather(*map(play, range(16)))
        assert {1, 2, 3} <= splits


async def test_no_memory_for_a_long_prompt_fails_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.engine.local.kv_cache import CacheBlock
    from agentrl.errors import EngineError

    fit = CacheBlock.fit

    def limited(self: CacheBlock, rows: int, columns: int, most_rows: int) -> None:
        if columns > 200:
            raise torch.OutOfMemoryError("no memory for so many columns")
        fit(self, rows, columns, most_rows)

    async with LocalEngine(MODEL, TOKENIZER) as engine:
        monkeypatch.setattr(CacheBlock, "fit", limited)
        lengths = [20, 500, 190, 30]
        calls = [ask(engine, prompt(i, length), 20, seed=i) for i, length in enumerate(lengths)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, EngineError) for answer in answers] == [False, True, True, False], "190 outgrows it"
