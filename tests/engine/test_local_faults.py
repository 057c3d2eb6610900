"""LocalEngine under bad requests, bad weights, dying threads and callers that are gone."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest

from tests.engine.inside import worker_of

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")

from agentrl.engine import ScriptedEngine  # noqa: E402
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.errors import ConfigError, EngineError  # noqa: E402
from agentrl.models import tiny_model, tiny_tokenizer  # noqa: E402

TOKENIZER = tiny_tokenizer()
FREE: Any = {"ignore_eos": True, "max_new_tokens": 12}


def prompt(seed: int, length: int = 20) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(len(TOKENIZER)) for _ in range(length)]


async def until_true(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it looks at changes in another thread
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("bad", [{"top_k": 2**63}, {"stop": ["\ud83d"]}, {"top_k": 2**40}], ids=str)
async def test_a_bad_request_fails_alone(bad: dict[str, Any]) -> None:
    async with LocalEngine(tiny_model(), TOKENIZER) as engine:
        calls = [engine.generate(prompt(i), {**FREE, **(bad if i == 3 else {})}) for i in range(10)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [i for i, answer in enumerate(answers) if isinstance(answer, BaseException)] == [3]
    assert isinstance(answers[3], EngineError)


@pytest.mark.parametrize("ids", [[1.0, 2.0], [None], ["1"], "12", [2**70], 7, [[1]]], ids=str)
async def test_a_prompt_that_is_no_list_of_token_ids_is_refused_at_the_door(ids: Any) -> None:
    async with LocalEngine(tiny_model(), TOKENIZER) as engine:
        with pytest.raises(EngineError, match="prompt"):
            await engine.generate(ids, FREE)
        with pytest.raises(EngineError, match="session_id and rid must be strings"):
            await engine.generate([1], FREE, session_id=["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize("poison", ["prompt", "response"])
async def test_a_row_that_breaks_the_forward_pass_fails_alone(poison: str) -> None:
    """One that breaks the batch it is in, found by passes of single rows."""
    model, mark = tiny_model(), 1023
    clean = [[token for token in prompt(i) if token != mark] for i in range(6)]
    clean[2].insert(5 if poison == "prompt" else len(clean[2]), mark)

    def break_on_mark(_module: object, args: tuple[Any, ...]) -> None:
        if (args[0] == mark).any():
            raise ValueError("this token is cursed")

    async with LocalEngine(model, TOKENIZER) as engine:
        model.model.embed_tokens.register_forward_pre_hook(break_on_mark)
        params = {**FREE, "stop_token_ids": [mark]}
        calls = [engine.generate(ids, {**params, "sampling_seed": i}) for i, ids in enumerate(clean)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [i for i, answer in enumerate(answers) if isinstance(answer, BaseException)] == [2]
        assert "ValueError: this token is cursed" in str(answers[2])
        assert len((await engine.generate(prompt(1)[:5], {**FREE, "sampling_seed": 0})).tokens) == 12


async def test_a_tokenizer_that_raises_fails_its_row_alone() -> None:
    class Tokenizer:
        eos_token_id = None

        def decode(self, *_: object, **__: object) -> str:
            raise OverflowError("out of range")

    async with LocalEngine(tiny_model(), Tokenizer()) as engine:
        calls = [engine.generate(prompt(i), {**FREE, **({"stop": "x"} if i == 1 else {})}) for i in range(4)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, EngineError) for answer in answers] == [False, True, False, False]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_dies_fails_its_callers_and_the_next_one_begins_anew() -> None:
    model = tiny_model()
    async with LocalEngine(model, TOKENIZER, max_batch=2) as engine:

        def die(*_: object) -> None:
            raise SystemExit("the thread ends here")

        hook = model.lm_head.register_forward_pre_hook(die)
        calls = [engine.generate(prompt(i), FREE) for i in range(5)]
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        hook.remove()
        assert all(isinstance(answer, EngineError) and "SystemExit" in str(answer) for answer in answers)
        assert len((await engine.generate(prompt(1), FREE)).tokens) == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_and_not_left_waiting() -> None:
    engine = LocalEngine(tiny_model(), TOKENIZER)
    asyncio.run(_ask(engine))
    with worker_of(engine)._wake:  # as a thread may hold it at the moment of a fork
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # a child that hangs fails the test
            code = 3
            try:
                asyncio.run(_ask(engine))
            except EngineError as exc:
                code = 0 if "forked" in str(exc) else 4
            finally:
                worker_of(engine).stop()
                os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    asyncio.run(engine.close())


async def _ask(engine: LocalEngine) -> None:
    await engine.generate(prompt(1), FREE)


async def test_damaged_weights_answer_nobody_and_leave_nothing_behind() -> None:
    model = tiny_model()
    async with LocalEngine(model, TOKENIZER, max_batch=4) as engine:
        good = await engine.generate(prompt(1), {**FREE, "temperature": 0})
        norm = model.model.norm.weight
        kept = norm.detach().clone()
        keys = model.model.layers[0].self_attn.k_proj.bias
        with torch.no_grad():
            norm.fill_(float("nan"))
            keys.fill_(float("nan"))
        for temperature in (0, 1):
            with pytest.raises(EngineError, match="not finite"):
                await engine.generate(prompt(1, 200), {**FREE, "temperature": temperature})
        with torch.no_grad():
            norm.copy_(kept)
            keys.zero_()
        longer = engine.generate(prompt(2, 100), FREE)  # the shorter row is read past its end, where it is masked
        again, _ = await asyncio.gather(engine.generate(prompt(1), {**FREE, "temperature": 0}), longer)
        assert again.tokens == good.tokens, "the keys of the damaged rows are masked, and NaN would show through"


def test_a_model_with_nan_weights_is_refused_when_the_engine_is_made() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ConfigError, match="not finite"):
        LocalEngine(model, TOKENIZER)


@pytest.mark.parametrize("max_batch", [0, -1])
def test_a_batch_of_no_rows_is_refused(max_batch: int) -> None:
    with pytest.raises(ConfigError, match=f"max_batch is {max_batch}"):
        LocalEngine(tiny_model(), TOKENIZER, max_batch=max_batch)
    with pytest.raises(ConfigError, match="max_context is 1;"):
        LocalEngine(tiny_model(), TOKENIZER, max_context=1)


async def test_the_callers_list_may_change_while_it_waits() -> None:
    async with LocalEngine(tiny_model(), TOKENIZER) as engine:
        ids, params = prompt(2), {**FREE, "sampling_seed": 3}
        expected = await engine.generate(list(ids), params)
        with worker_of(engine).between_steps():
            task = asyncio.create_task(engine.generate(ids, params))
            await asyncio.sleep(0)
            ids[:] = [0]
        assert (await task).tokens == expected.tokens


@pytest.mark.parametrize("used", [False, True])
async def test_an_engine_that_nobody_holds_ends_its_thread_and_lets_its_model_go(used: bool) -> None:
    model = tiny_model()
    engine = LocalEngine(model, TOKENIZER)
    if used:
        await engine.generate(prompt(1), FREE, session_id="kept")
        assert _threads()
    gone = weakref.ref(model)
    del engine, model
    gc.collect()
    await until_true(lambda: not _threads())
    gc.collect()
    assert gone() is None


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agentrl-local-engine"]


async def test_a_caller_whose_loop_is_closed_leaves_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    engine = LocalEngine(tiny_model(), TOKENIZER)
    long: Any = {"ignore_eos": True, "max_new_tokens": 1000}
    asked: list[Any] = []

    def ask_and_leave() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(engine.generate(prompt(1), long))
        loop.run_until_complete(until_true(lambda: any(r.log_probs for r in worker_of(engine).running)))
        asked.extend(worker_of(engine).running)
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    with caplog.at_level(logging.DEBUG):
        await asyncio.to_thread(ask_and_leave)
        await until_true(lambda: not worker_of(engine).running)
        assert len((await engine.generate(prompt(2), FREE)).tokens) == 12
        await engine.close()
    assert [len(request.log_probs) < 1000 for request in asked] == [True]
    assert "exception calling callback" not in caplog.text


async def test_engines_are_closed_by_their_context_and_may_be_closed_again(chars: Any) -> None:
    async with LocalEngine(tiny_model(), TOKENIZER) as engine, ScriptedEngine(["a"], chars) as scripted:
        await engine.generate(prompt(1), FREE)
        await scripted.generate([1], {})
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(prompt(1), FREE)
    await engine.close()
    await scripted.close()


@pytest.mark.thorough
def test_a_script_may_end_while_its_engine_works():
    code = """
import asyncio
from agentrl import LocalEngine
from agentrl.models import load_model, load_tokenizer

engine = LocalEngine(load_model("tiny"), load_tokenizer("tiny"))

async def leave():
    for n in range(64):
        asyncio.ensure_future(engine.generate([9, n], {"max_new_tokens": 500}))
    await asyncio.sleep(0.3)

asyncio.run(leave())
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
