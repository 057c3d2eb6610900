"""The client against our own server, as `agentrl serve` runs it: the whole way to an engine and back."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import pytest

from agentrl.engine import ScriptedEngine, SGLangEngine
from agentrl.engine.sglang.server import running_server
from agentrl.errors import EngineError
from tests.engine.inside import connections_of


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


@asynccontextmanager
async def client(url, **kwargs):
    engine = SGLangEngine(url, **kwargs)
    try:
        yield engine
    finally:
        await engine.close()


async def test_the_whole_way_to_an_engine_and_back(chars):
    script = ["hello", EngineError("hiccup"), "world"]
    served = ScriptedEngine(script, chars, context_length=2048)
    async with running_server(served, decode=chars.decode) as url, client(url) as engine:
        history = [1, 2, 3]
        first = await engine.generate(history, {"max_new_tokens": 50}, session_id="s")
        history += [*first.tokens, 9]
        second = await engine.generate(history, {"stop": ["wor"], "stop_token_ids": []}, session_id="s")
        length = await engine.context_length()
        with pytest.raises(
            EngineError, match=r"HTTP 400: The input \(2048 tokens\) is longer than the model's context"
        ):
            await engine.generate([1] * 2048, {}, session_id="s")
    twin = ScriptedEngine(["hello", "world"], chars)
    assert first.tokens == ids("hello$")
    assert first.log_probs == (await twin.generate([1], {})).log_probs
    assert (second.tokens, second.finish_reason, second.matched) == (ids("wor"), "stop", "wor")
    assert served.requests[1:] == [history, history]
    assert length == 2048


async def test_cancelled_aborted_and_resumed(chars):
    served = ScriptedEngine(["0123456789" * 100], chars, seconds=10)
    async with running_server(served) as url, client(url) as engine:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await engine.generate([1], {"max_new_tokens": 2000}, session_id="s")
        assert served.in_progress == {}
        running = asyncio.create_task(engine.generate([1], {"max_new_tokens": 2000}, session_id="s", rid="r"))
        await asyncio.sleep(0.2)
        await engine.abort("r")
        part = await running
        served.turn_seconds = 0.0
        rest = await engine.generate([1, *part.tokens], {"max_new_tokens": 2000}, session_id="s")
    assert part.finish_reason == "abort"
    assert 0 < len(part.tokens) < 1000
    assert [*part.tokens, *rest.tokens] == ids("0123456789" * 100 + "$")


@pytest.mark.thorough
async def test_many_at_once_do_not_wait_for_each_other(chars):
    served = ScriptedEngine(lambda input_ids: str(len(input_ids)), chars, seconds=0.3)
    async with running_server(served) as url, client(url) as engine:
        start = time.monotonic()
        calls = [engine.generate([1] * n, {}, session_id=f"s{n}") for n in range(1, 201)]
        answers = await asyncio.gather(*calls)
        assert time.monotonic() - start < 10  # one after the other would be 60 s
    assert [chars.decode(answer.tokens) for answer in answers] == [f"{n}$" for n in range(1, 201)]


async def test_two_event_loops_in_two_threads_share_an_engine(chars):
    served = ScriptedEngine(lambda input_ids: str(len(input_ids)), chars)
    results = []
    async with running_server(served) as url:
        engine = SGLangEngine(url)
        loops = {}
        stop, done = asyncio.Event(), asyncio.Event()
        here = asyncio.get_running_loop()

        async def play(first):
            for turn in range(20):
                generation = await engine.generate([1] * (first + turn), {}, session_id=f"s{turn % 3}")
                results.append(chars.decode(generation.tokens) == f"{first + turn}$")

        async def play_and_wait():
            loops["other"] = asyncio.get_running_loop()
            await play(1000)
            here.call_soon_threadsafe(done.set)
            await stop.wait()

        thread = threading.Thread(target=asyncio.run, args=(play_and_wait(),))
        thread.start()
        try:
            async with asyncio.timeout(10):
                await play(1)
                await done.wait()
            assert set(connections_of(engine).sessions) == {here, loops["other"]}
            await engine.close()
        finally:
            loops["other"].call_soon_threadsafe(stop.set)
            await asyncio.to_thread(thread.join)
    assert results == [True] * 40
    assert connections_of(engine).sessions == {}
