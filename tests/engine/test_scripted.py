from __future__ import annotations

import asyncio

import pytest

from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.errors import EngineError


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def text(generation: Generation) -> str:
    return "".join(map(chr, generation.tokens))


async def test_plays_strings_and_messages_in_order_for_each_session(chars):
    engine = ScriptedEngine(["one", {"role": "assistant", "content": "two"}], chars)
    first = await engine.generate(ids("a"), {}, session_id="s")
    other = await engine.generate(ids("b"), {}, session_id="t")
    second = await engine.generate(ids("aone$x"), {}, session_id="s")
    assert [text(first), text(other), text(second)] == ["one$", "one$", "two$"]
    assert (first.finish_reason, first.matched) == ("stop", ord("$"))
    assert engine.requests == [ids("a"), ids("b"), ids("aone$x")]


async def test_log_probs_are_finite_nonzero_and_tell_neighbours_apart(chars):
    generation = await ScriptedEngine(["abc"], chars).generate([1], {})
    assert list(generation.log_probs) == [scripted_log_prob(token) for token in generation.tokens]
    assert all(-1 < log_prob < 0 for log_prob in generation.log_probs)
    assert len(set(generation.log_probs)) == len(generation.tokens)


@pytest.mark.parametrize(
    ("params", "said", "finish", "matched"),
    [
        ({}, "say </a> and </b>$", "stop", ord("$")),
        ({"stop": ["</b>", "</a>"]}, "say </a>", "stop", "</a>"),
        ({"stop": "</b>"}, "say </a> and </b>", "stop", "</b>"),
        ({"stop": ["nowhere"]}, "say </a> and </b>$", "stop", ord("$")),
        ({"stop_token_ids": [ord("y")]}, "say", "stop", ord("y")),
        ({"stop": ["y"], "stop_token_ids": [ord("y")]}, "say", "stop", "y"),
        ({"max_new_tokens": 2}, "sa", "length", None),
        ({"max_new_tokens": 0}, "", "length", None),
        ({"max_new_tokens": 3, "stop_token_ids": [ord("y")]}, "say", "stop", ord("y")),
        ({"max_new_tokens": 3, "stop": ["y"]}, "say", "stop", "y"),
        ({"max_new_tokens": 4, "stop_token_ids": [ord("y")]}, "say", "stop", ord("y")),
        ({"max_new_tokens": 18}, "say </a> and </b>$", "stop", ord("$")),
        ({"max_new_tokens": 19, "stop": None, "stop_token_ids": None}, "say </a> and </b>$", "stop", ord("$")),
    ],
)
async def test_obeys_limits(chars, params, said, finish, matched):
    generation = await ScriptedEngine(["say </a> and </b>"], chars).generate([1], params)
    assert (text(generation), generation.finish_reason, generation.matched) == (said, finish, matched)
    assert len(generation.log_probs) == len(generation.tokens)


async def test_a_generation_is_played_as_it_is_and_cut_when_asked(chars):
    given = Generation(ids("abc"), [-1.0, -2.0, -3.0], "length", weight_version="7", cached_tokens=5)
    engine = ScriptedEngine([given, given], chars)
    assert await engine.generate([1], {}) == given
    cut = await engine.generate([1], {"stop": ["b"]})
    assert (text(cut), cut.log_probs, cut.finish_reason, cut.weight_version) == ("ab", [-1.0, -2.0], "stop", "7")


async def test_raises_what_the_script_says_and_goes_on(chars):
    engine = ScriptedEngine([EngineError("down"), "up"], chars)
    with pytest.raises(EngineError, match="down"):
        await engine.generate([1], {})
    assert text(await engine.generate([1], {})) == "up$"


async def test_generator_is_sent_what_was_appended(chars):
    heard = []

    def player():
        heard.append((yield "first"))
        heard.append((yield "second"))
        yield "third"

    engine = ScriptedEngine(player(), chars)
    history = ids("hello")
    for observation in ("<obs 1>", "<obs 2>", ""):
        generation = await engine.generate(history, {}, session_id="s")
        history = [*history, *generation.tokens, *ids(observation)]
    assert heard == ["<obs 1>", "<obs 2>"]
    with pytest.raises(AssertionError, match="asked for turn 4, but the script has 3"):
        await engine.generate(history, {}, session_id="s")
    with pytest.raises(AssertionError, match="plays one session"):
        await engine.generate(history, {}, session_id="another")


async def test_generator_hears_the_rest_of_a_turn_that_was_cut(chars):
    heard = []

    def player():
        heard.append((yield "say </a> more"))
        yield "end"

    engine = ScriptedEngine(player(), chars)
    await engine.generate(ids("p"), {"stop": ["</a>"]})
    await engine.generate(ids("psay </a>result"), {})
    assert heard == ["result"]


async def test_function_serves_many_sessions_without_state(chars):
    engine = ScriptedEngine(lambda input_ids: f"{len(input_ids)} tokens", chars)
    answers = await asyncio.gather(*[engine.generate([1] * n, {}, session_id=str(n % 3)) for n in range(1, 50)])
    assert [text(answer) for answer in answers] == [f"{n} tokens$" for n in range(1, 50)]


async def test_exhausted_script_names_its_length(chars):
    engine = ScriptedEngine(["only"], chars)
    await engine.generate([1], {})
    with pytest.raises(AssertionError, match="asked for turn 2, but the script has 1; add a turn"):
        await engine.generate([1], {})


def test_a_bare_string_is_refused(chars):
    with pytest.raises(TypeError, match="put a single turn into a list"):
        ScriptedEngine("hello", chars)


async def test_abort_returns_a_part_and_the_next_request_goes_on(chars):
    engine = ScriptedEngine(["0123456789" * 100, "next"], chars, seconds=10)
    running = asyncio.create_task(engine.generate(ids("p"), {}, rid="r"))
    await asyncio.sleep(0.1)
    await engine.abort("somebody else's")
    await asyncio.sleep(0.02)
    assert not running.done()
    await engine.abort("r")
    part = await running
    assert (part.finish_reason, part.matched) == ("abort", None)
    assert 0 < len(part.tokens) < 1000
    assert len(part.log_probs) == len(part.tokens)
    engine.turn_seconds = 0.0
    rest = await engine.generate([*ids("p"), *part.tokens], {})
    assert text(part) + text(rest) == "0123456789" * 100 + "$"
    assert text(await engine.generate([*ids("p"), *part.tokens, *rest.tokens], {})) == "next$"


async def test_a_turn_whose_part_was_thrown_away_is_said_again(chars):
    engine = ScriptedEngine(["0123456789"], chars, seconds=10)
    running = asyncio.create_task(engine.generate(ids("p"), {}))
    await asyncio.sleep(0.02)
    await engine.abort()
    assert (await running).finish_reason == "abort"
    engine.turn_seconds = 0.0
    assert text(await engine.generate(ids("p"), {})) == "0123456789$"


async def test_a_cancelled_turn_is_said_again_and_nothing_keeps_running(chars):
    engine = ScriptedEngine(["hello"], chars, seconds=10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await engine.generate([1], {}, rid="r")
    assert engine.in_progress == {}
    engine.turn_seconds = 0.0
    assert text(await engine.generate([1], {}, rid="r")) == "hello$"


async def test_seconds_are_spent_concurrently(chars):
    engine = ScriptedEngine(lambda _: "x", chars, seconds=0.1)
    start = asyncio.get_running_loop().time()
    await asyncio.gather(*[engine.generate([1], {}) for _ in range(100)])
    assert 0.09 < asyncio.get_running_loop().time() - start < 5.0


async def test_close_ends_what_is_running_and_the_generator(chars):
    ended = []

    def player():
        try:
            yield "hello"
        finally:
            ended.append(True)

    engine = ScriptedEngine(player(), chars, seconds=30, context_length=77)
    running = asyncio.create_task(engine.generate([1], {}))
    await asyncio.sleep(0)
    await engine.close()
    assert (await running).finish_reason == "abort"
    assert ended == [True]
    assert await engine.context_length() == 77
    await engine.close()
