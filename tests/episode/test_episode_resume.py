"""An aborted episode goes on exactly where it stopped, whatever it was doing, in each of the three ways."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import (
    Env,
    LedgerError,
    Limits,
    StepResult,
    StopReason,
    TurnOptions,
    run_episode,
    tool,
)
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.parking import resume_method
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.testing import call
from tests.episode import thinking
from tests.episode.resuming import ENVS, SCRIPT, TASK, Engine, Host, Replayed, Saved, Sum, added, closed, picture


@pytest.fixture(autouse=True)
def _nothing_happened_yet():
    added.clear()
    closed.clear()


def test_the_way_back():
    assert [resume_method(env) for env in ENVS] == ["alive", "snapshot", "replay"]

    class Both(Saved):
        deterministic = True

    assert resume_method(Both) == "snapshot"


@pytest.mark.parametrize("env", ENVS)
async def test_an_abort_at_each_poll_of_the_flag(renderer, env):
    """Before reset, before each generation, between a turn and its step, after each step, before scoring."""
    whole = Host(env, Engine(SCRIPT, renderer), renderer)
    expected = await whole.to_the_end()
    assert (expected.reward, expected.stop, added) == (6.0, StopReason.DONE, [1, 2, 3])
    assert whole.polls == 1 + 2 * len(SCRIPT) + 1
    for poll in range(1, whole.polls + 1):
        added.clear()
        closed.clear()
        host = Host(env, Engine(SCRIPT, renderer), renderer, at=frozenset({poll}))
        t = await host.to_the_end()
        assert picture(t) == picture(expected), f"poll {poll}"
        t.verify()
        assert t.prefix_breaks == 0
        assert host.engine.requests == whole.engine.requests, "nothing is sampled twice"
        assert [p["max_new_tokens"] for p in host.engine.params] == [p["max_new_tokens"] for p in whole.engine.params]
        assert len(host.parked) == (poll > 1), "before the reset there is nothing to keep"
        if env is not Replayed:
            assert added == [1, 2, 3]
        assert len(closed) == (1 if env is Sum and poll > 1 else 2)


@pytest.mark.parametrize("env", ENVS)
async def test_an_abort_at_every_poll_of_one_episode(renderer, env):
    expected = await Host(env, Engine(SCRIPT, renderer), renderer).to_the_end()
    added.clear()
    host = Host(env, Engine(SCRIPT, renderer), renderer, at=frozenset({1}))
    t = await host.play()
    while t.stop is StopReason.ABORTED:
        assert len(host.parked) < 50
        # As soon as it is back and has done one thing: before that, the flag is polled so many times.
        done = host.parked[-1].episode.steps if host.parked and env is Replayed else 0
        host.at = frozenset({host.polls + 3 + done + (env is not Sum and bool(host.parked))})
        t = await (host.resume() if host.parked else host.play())
    assert picture(t) == picture(expected)
    assert len(host.parked) == 2 * len(SCRIPT)
    assert env is Replayed or added == [1, 2, 3]


@pytest.mark.parametrize("seen", range(1, 6))
async def test_a_replay_that_an_abort_cuts_short_is_parked_unchanged(renderer, seen):
    """Even if the flag is up for one poll only: nothing is played on an Env that is not back."""
    expected = await Host(Replayed, Engine(SCRIPT, renderer), renderer).to_the_end()
    host = Host(Replayed, Engine(SCRIPT, renderer), renderer, at=frozenset({10}))
    await host.play()
    before, host.polls = host.parked[-1], 0
    assert before.episode.steps == 4

    polls = iter(range(1, 1000))
    t = await host.resume(hooks=EpisodeHooks(aborted=lambda: next(polls) == seen, park=host.park))
    assert (t.stop, len(host.parked), len(host.engine.requests)) == (StopReason.ABORTED, 2, 4)
    again = host.parked[-1]
    assert (again.how, again.rng, again.episode.steps) == (before.how, before.rng, 4)
    assert again.episode.trajectory.tokens == before.episode.trajectory.tokens
    host.at = frozenset()
    assert picture(await host.resume()) == picture(expected)


@pytest.mark.parametrize("env", ENVS)
async def test_an_abort_in_the_middle_of_any_turn(renderer, env):
    expected = await Host(env, Engine(SCRIPT, renderer), renderer).to_the_end()
    for request in range(1, len(SCRIPT) + 1):
        for kept in (0, 1, 5):
            added.clear()
            host = Host(env, None, renderer)
            host.engine = Engine(
                SCRIPT, renderer, cuts={request: kept}, on_cut=lambda host=host: setattr(host, "flag", True)
            )
            t = await host.to_the_end()
            assert picture(t) == picture(expected)
            again = host.engine.requests[request]
            assert again == host.engine.requests[request - 1] + t.tokens[len(again) - kept : len(again)]
            assert (
                host.engine.params[request]["max_new_tokens"]
                == host.engine.params[request - 1]["max_new_tokens"] - kept
            )
            assert len(t.turns[request - 1].meta) == 2
            assert env is Replayed or added == [1, 2, 3]


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"turns": 3}, StopReason.MAX_TURNS),
        ({"tokens": 200}, StopReason.MAX_TOKENS),
        ({"max_tokens_per_turn": 12}, StopReason.TURN_MAX_TOKENS),
        ({"context": 280}, StopReason.CONTEXT_FULL),
    ],
)
async def test_budgets_count_what_was_spent_before(renderer, env, limits, stop):
    limits = Limits(**limits)
    whole = Host(env, Engine(SCRIPT, renderer), renderer, limits=limits)
    expected = await whole.to_the_end()
    assert expected.stop is stop
    for poll in range(2, whole.polls + 1):
        host = Host(env, Engine(SCRIPT, renderer), renderer, limits=limits, at=frozenset({poll}))
        assert picture(await host.to_the_end()) == picture(expected)
    host = Host(env, None, renderer, limits=limits)
    host.engine = Engine(SCRIPT, renderer, cuts={1: 5}, on_cut=lambda: setattr(host, "flag", True))
    assert picture(await host.to_the_end()) == picture(expected)


class Guess(thinking.Guess):
    deterministic = True


class SavedGuess(thinking.Guess):
    def snapshot(self):
        return None

    def restore(self, state):
        pass


@pytest.mark.parametrize("env", [thinking.Guess, SavedGuess, Guess])
async def test_stripped_thoughts(env):
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = thinking.TEMPLATE
    renderer = load_renderer(tokenizer)

    def host(**kwargs):
        script = thinking.SCRIPT
        limits = Limits(turns=len(script))
        return Host(env, Engine(script, renderer), renderer, thinking.TASK, limits, "strip", **kwargs)

    whole = host()
    expected = await whole.to_the_end()
    assert len(expected.segments) == 3
    for poll in range(2, whole.polls + 1):
        t = await host(at=frozenset({poll})).to_the_end()
        assert picture(t) == picture(expected)
        t.verify()


async def test_time_that_it_was_parked_does_not_count(renderer):
    host = Host(Sum, Engine(SCRIPT, renderer), renderer, limits=Limits(episode_s=0.4), at=frozenset({4}))
    await host.play()
    await asyncio.sleep(0.5)
    assert host.parked[0].episode.played_s < 0.4
    assert (await host.resume()).stop is StopReason.DONE
    host = Host(Sum, Engine(SCRIPT, renderer), renderer, limits=Limits(episode_s=0.4), at=frozenset({4}))
    await host.play()
    host.parked[0].episode.played_s = 0.5
    t = await host.resume(host.parked[0])
    assert t.stop is StopReason.DEADLINE, "what was played before does"


async def test_the_deadline_of_an_episode_that_is_then_aborted(renderer):
    class Slow(Replayed):
        async def step(self, action):
            if self.total == 3:
                await asyncio.sleep(60)
            return await super().step(action)

    host = Host(Slow, Engine(SCRIPT, renderer), renderer, limits=Limits(episode_s=0.3))
    playing = asyncio.create_task(host.play())
    await asyncio.sleep(0.2)
    host.flag = True  # while the tool is running: the deadline ends it, and then it is not scored
    assert (await playing).stop is StopReason.ABORTED
    t = await host.resume()
    assert (t.stop, t.reward, len(t.turns)) == (StopReason.DEADLINE, 3.0, 3)


async def test_errors_in_tools_are_counted_over_all_of_it(renderer):
    class Flaky(Saved):
        @tool
        async def add(self, n: int) -> str:
            """Add a number."""
            raise KeyError(n)

    host = Host(Flaky, Engine(SCRIPT, renderer), renderer, at=frozenset({6}))
    assert (await host.play()).info["tool_errors"] == {"add:KeyError": 2}
    assert (await host.resume()).info["tool_errors"] == {"add:KeyError": 3}


async def test_without_park_an_abort_before_scoring_leaves_it_unscored(renderer):
    polls = iter([False] * 11 + [True])
    t = await run_episode(
        Sum(), TASK, engine=Engine(SCRIPT, renderer), renderer=renderer, hooks=EpisodeHooks(aborted=lambda: next(polls))
    )
    assert (t.stop, t.reward, len(t.turns), len(closed)) == (StopReason.ABORTED, None, 5, 1)


async def test_an_abort_that_comes_with_the_last_token_of_a_turn(renderer):
    """The turn is over, whatever the engine calls it: what is sampled next belongs to the next one."""
    tokens = renderer.encode(call("add", n=1))
    host = Host(Sum, None, renderer)
    host.engine = Engine(
        SCRIPT[:1] + SCRIPT[-1:], renderer, cuts={1: len(tokens)}, on_cut=lambda: setattr(host, "flag", True)
    )
    t = await host.to_the_end()
    assert [(turn.finish_reason, turn.calls) for turn in t.turns] == [("stop", ["add"]), ("stop", [])]
    assert (host.parked[0].episode.next, t.actions[0].matched, added) == ("step", tokens[-1], [1])


async def test_an_abort_that_comes_with_the_end_of_a_stop_string(renderer):
    class Tags(Env):
        turn_options = TurnOptions(stop=("</go>",))

        async def step(self, action):
            return StepResult(done=True)

    host = Host(Tags, None, renderer)
    whole = renderer.encode({"role": "assistant", "content": "on <go>now</go>"})
    tagged = next(n for n in range(len(whole)) if "</go>" in renderer.decode(whole[:n]))
    host.engine = Engine(["on <go>now</go>"], renderer, cuts={1: tagged}, on_cut=lambda: setattr(host, "flag", True))
    t = await host.to_the_end()
    assert (len(host.engine.requests), t.actions[0].matched, t.ledger.sampled) == (1, "</go>", tagged)


# Tokens that the host masks meanwhile


async def test_a_mask_by_positions_splits_spans_and_keeps_the_ledger(renderer):
    t = await run_episode(Sum(), TASK, engine=Engine(SCRIPT, renderer), renderer=renderer)
    t.mask("malformed", turn=2)
    before = [(span.start, span.stop, span.kind, span.turn) for span in t.segment.spans]
    kept = [i % 3 > 0 for i in range(t.segment.response_length)]
    t.mask_where(kept, "off_policy")
    t.verify()
    assert t.prefix_breaks == 0
    joined: list[tuple[int, int, str, int]] = []
    for span in t.segment.spans:
        if joined and joined[-1][2:] == (span.kind, span.turn):
            joined[-1] = (joined[-1][0], span.stop, span.kind, span.turn)
        else:
            joined.append((span.start, span.stop, span.kind, span.turn))
    assert joined == before
    reasons = [span.masked for span in t.segment.spans for _ in range(span.start, span.stop)]
    for i, (source, mask) in enumerate(zip(t.segment.sources, t.loss_mask, strict=True)):
        if source != "sampled":
            assert (mask, reasons[i]) == (0, None)
        elif i in range(*next(span[:2] for span in before if span[3] == 2)):
            assert (mask, reasons[i]) == (0, "malformed"), "the first reason stays"
        else:
            assert (mask, reasons[i]) == ((1, None) if kept[i] else (0, "off_policy"))
    assert t.ledger.masked["off_policy"] == reasons.count("off_policy") > 0
    again = type(t).from_json(t.to_json())
    assert (again.ledger, again.segment.spans, again.prefix_breaks) == (t.ledger, t.segment.spans, 0)
    assert [again.turns[i].sampled_tokens for i in range(5)] == [len(a.tokens) for a in t.actions]
    with pytest.raises(LedgerError, match="3 of"):
        t.mask_where([1, 1, 1], "host")
