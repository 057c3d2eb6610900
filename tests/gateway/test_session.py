"""Sessions: what a client gets, whatever happens to it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from agentrl import EngineError, Generation, Limits, StopReason, TemplateError, Trajectory
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, RefusedError
from agentrl.errors import EngineLostError
from agentrl.testing import call
from agentrl.types import CheckCounts
from tests.gateway.client import ASK, FIND, SYSTEM, Entry, Talk, results, told


def request(*entries):
    return ChatRequest(wire="chat", entries=entries, tools=(FIND,))


async def called(params):
    """Wait until the engine was asked."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert params


async def test_a_line_of_two_turns_is_one_segment(renderer):
    talk = Talk(renderer, [call("find", what="France"), "Paris"])
    first = await talk.says(SYSTEM, ASK)
    assert (first.stop, first.calls[0].name, first.calls[0].arguments) == ("calls", "find", {"what": "France"})
    history = [SYSTEM, ASK, told(first), *results(first, "It is Paris.")]
    second = await talk.says(*history)
    assert (second.content, second.stop, second.calls) == ("Paris", "end", ())
    assert second.usage.prompt == len(talk.engine.requests[1])
    t = talk.end()
    assert len(t.segments) == 1
    assert t.ledger.trained == t.ledger.sampled == first.usage.sampled + second.usage.sampled
    assert [m["role"] for m in t.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert t.answer == "Paris"
    assert talk.audits == []


async def test_other_conversations_are_roots_and_siblings_begin_segments(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}")
    first = await talk.says(SYSTEM, ASK)
    await talk.says(Entry("system", "Titles."), ASK, tools=())
    await talk.says(SYSTEM, ASK, told(first), Entry("user", "Sure?"))
    await talk.says(SYSTEM, ASK, told(first), Entry("user", "Really?"))
    t = talk.end()
    assert [len(s.turns) for s in t.segments] == [1, 1, 2]
    assert talk.engine.session_ids == ["s", "s.1", "s", "s"]
    assert t.info["agent"]["roots"] == 2


async def test_a_delivery_that_was_not_read_is_taken_back(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}")
    exchange = talk.ask(SYSTEM, ASK, digest="a")
    (first,) = await talk.replies(exchange)
    exchange.delivered()
    exchange.lost()
    assert await talk.says(SYSTEM, ASK, digest="a") == first
    exchange.lost()  # of the old connection, once more
    t = talk.end()
    assert (len(talk.engine.requests), t.ledger.masked) == (1, {})


async def test_what_nobody_read_is_not_trained(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}")
    exchange = talk.ask(SYSTEM, ASK)
    (first,) = await talk.replies(exchange)
    exchange.delivered()
    exchange.lost()
    assert talk.end().ledger.masked == {"undelivered": first.usage.sampled}


async def test_a_pause_leaves_turns_open_and_plays_them_on(renderer):
    talk = Talk(renderer, lambda ids: "a long answer" if len(ids) < 60 else "er", play=False)
    early = talk.ask(SYSTEM, ASK, tools=())
    await asyncio.sleep(0)
    assert talk.engine.params == [], "nothing is sampled before the play"
    talk.engine.gate.clear()
    talk.play()
    await early.accepted()
    await called(talk.engine.params)
    talk.session.hold()
    talk.engine.aborts(3)
    talk.engine.gate.set()
    await talk.session.quiet()
    paused = Trajectory()
    talk.session.write(paused)
    assert (paused.segment.open, paused.ledger.sampled) == (True, 3)
    late = talk.ask(SYSTEM, Entry("user", "Another."), tools=())
    await asyncio.sleep(0)
    assert len(talk.engine.answers) == 1
    talk.play()
    (reply,) = await talk.replies(early)
    await talk.replies(late)
    early.delivered()
    assert reply.usage.sampled > 3
    t = talk.end()
    assert t.ledger.masked == {}
    assert len(t.segments) == 2


async def test_what_an_abort_of_the_engine_alone_cut_goes_on_by_itself(renderer):
    talk = Talk(renderer, lambda ids: "ong answer" if talk.engine.answers else "a lXXX")
    talk.engine.aborts(3)
    assert (await talk.says(SYSTEM, ASK)).content == "a long answer"
    assert len(talk.engine.requests) == 2
    assert talk.end().ledger.masked == {}


async def test_a_flag_of_the_host_stops_sampling_until_it_is_down(renderer):
    flags = [True, True, False]
    talk = Talk(renderer, ["Paris"], aborted=lambda: flags.pop(0) if len(flags) > 1 else flags[0])
    assert (await talk.says(SYSTEM, ASK)).content == "Paris"


async def test_a_closed_session_refuses_who_waits_and_who_comes(renderer):
    for unavailable, kind in ((False, "closed"), (True, "unavailable")):
        talk = Talk(renderer, lambda ids: "x")
        talk.engine.gate.clear()
        waiting = talk.ask(SYSTEM, ASK)
        await waiting.accepted()
        never_begun = talk.ask(SYSTEM, Entry("user", "Other."))
        talk.session.close("the episode is over", unavailable=unavailable)
        for exchange in (waiting, never_begun, talk.ask(SYSTEM, ASK)):
            with pytest.raises(RefusedError, match="the episode is over") as refused:
                await exchange.replies()
            assert refused.value.kind == kind
        with pytest.raises(RefusedError, match="over"):
            await never_begun.accepted()
        with pytest.raises(RefusedError, match="over"):
            await talk.session.count(request(SYSTEM, ASK))
        assert talk.session.ended.is_set()
        await talk.session.quiet()
        talk.engine.gate.set()


async def test_the_limit_of_turns_ends_the_session(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}", limits=Limits(turns=2))
    one = await talk.says(SYSTEM, ASK)
    two = await talk.says(SYSTEM, ASK, told(one), ASK)
    with pytest.raises(RefusedError, match="has had its 2 replies") as refused:
        await talk.ask(SYSTEM, ASK, told(one), ASK, told(two), ASK).accepted()
    assert (refused.value.kind, talk.session.stop) == ("closed", StopReason.MAX_TURNS)
    assert talk.session.ended.is_set()
    assert len(talk.end().segments) == 1


async def test_the_limit_of_tokens_bounds_a_line(renderer):
    talk = Talk(renderer, lambda ids: "a rather long answer", limits=Limits(tokens=10))
    one = await talk.says(SYSTEM, ASK)
    assert one.usage.sampled <= 10
    with pytest.raises(RefusedError, match="prompt is too long") as refused:
        await talk.ask(SYSTEM, ASK, told(one), Entry("user", "Once more, please.")).accepted()
    assert refused.value.kind == "context_full"
    await talk.says(SYSTEM, Entry("user", "Shorter."))
    talk.end()


async def test_an_engine_that_broke_ends_the_session(renderer):
    talk = Talk(renderer, [EngineError("gone")])
    with pytest.raises(RefusedError, match="gone") as refused:
        await talk.ask(SYSTEM, ASK).replies()
    assert refused.value.kind == "unavailable"
    assert (talk.session.failure.kind, talk.session.failure.boundary) == ("engine", "engine")
    assert talk.session.ended.is_set()
    talk.session.write(Trajectory())


async def test_a_bug_is_kept_for_the_episode_to_raise(renderer):
    talk = Talk(renderer, [Generation([5, -1], [-0.5, -0.5], "stop")])
    with pytest.raises(RefusedError, match="cannot be trained on"):
        await talk.ask(SYSTEM, ASK).replies()
    lost = Talk(renderer, [EngineLostError("other weights")])
    with pytest.raises(RefusedError) as refused:
        await lost.ask(SYSTEM, ASK).replies()
    assert refused.value.kind == "unavailable"
    assert isinstance(lost.session.error, EngineLostError)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"entries": ()}, "no messages"),
        ({"n": 0}, "n is 0"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_the_session_goes_on(renderer, given, message):
    talk = Talk(renderer, ["Paris"])
    entries = given.pop("entries", (SYSTEM, ASK))
    with pytest.raises(RefusedError, match=message) as refused:
        await talk.ask(*entries, **given).accepted()
    assert refused.value.status == 400
    await talk.says(SYSTEM, ASK)


async def test_what_the_template_cannot_carry_is_the_clients_to_mend(renderer, monkeypatch):
    talk = Talk(renderer, ["Paris"])

    def refuses(*_):
        raise TemplateError("no such role")

    with monkeypatch.context() as patch:
        patch.setattr("agentrl.chat.tokens.writer.Writer.prompt", refuses)
        with pytest.raises(RefusedError, match="no such role") as refused:
            await talk.ask(SYSTEM, ASK).accepted()
    assert refused.value.kind == "invalid"
    await talk.says(SYSTEM, ASK)
    assert talk.end().info["agent"]["refused"] == 1


async def test_calls_that_cannot_be_read_are_told_as_text(renderer):
    broken = 'Let me see.\n<tool_call>\n{"name": "find", "arg\n</tool_call>'
    talk = Talk(renderer, [broken, "Sorry."])
    one = await talk.says(SYSTEM, ASK)
    assert (one.stop, one.calls) == ("end", ())
    assert one.content.startswith("Let me see.")
    assert '{"name": "find", "arg' in one.content
    await talk.says(SYSTEM, ASK, Entry("assistant", one.content), Entry("user", "That is no call."))
    t = talk.end()
    assert talk.audits == ["unreadable_call"]
    assert [turn.bad_call for turn in t.turns] == ["structural", None]
    assert len(t.segments) == 1


UNREADABLE = {
    "a name and no end": ('{"name": "find", "arg', "find"),
    "a tool that is named somewhere": ('{"tool": "find", "what": "x"}', "find"),
    "no name": ('{"arguments": {}}', "unreadable_call"),
    "nothing": ("", "unreadable_call"),
    "arguments that are a list": ('{"name": "find", "arguments": [1]}', "find"),
}


@pytest.mark.parametrize("what", UNREADABLE)
async def test_calls_that_cannot_be_read_can_be_told_as_calls(renderer, what):
    raw, name = UNREADABLE[what]
    broken = f"Let me see.\n<tool_call>\n{raw}\n</tool_call>"
    talk = Talk(renderer, [broken, "Sorry."], options=SessionOptions(unreadable="call"))
    one = await talk.says(SYSTEM, ASK)
    assert (one.stop, one.content, [made.name for made in one.calls]) == ("calls", "Let me see.", [name])
    (made,) = one.calls
    assert isinstance(made.arguments, str)
    assert raw in made.arguments
    with pytest.raises(ValueError):  # noqa: PT011 - no client may take it for arguments and execute it
        json.loads(made.arguments)
    await talk.says(SYSTEM, ASK, told(one), *results(one, "That is no JSON."))
    t = talk.end()
    assert (talk.audits, len(t.segments)) == (["unreadable_call"], 1)
    assert [turn.bad_call for turn in t.turns] == ["structural", None]
    assert "That is no JSON." in renderer.decode(t.tokens)
    assert t.ledger.trained == t.ledger.sampled


async def test_a_readable_call_beside_one_that_is_not_keeps_its_id(renderer):
    good = '<tool_call>\n{"name": "find", "arguments": {"what": "x"}}\n</tool_call>'
    turns = [f'<tool_call>\n{{"name": "find", oops\n</tool_call>\n{good}', "Done."]
    talk = Talk(renderer, turns, options=SessionOptions(unreadable="call"))
    one = await talk.says(SYSTEM, ASK)
    assert [isinstance(made.arguments, str) for made in one.calls] == [True, False]
    await talk.says(SYSTEM, ASK, told(one), *results(one, "No JSON.", "Found."))
    t = talk.end()
    assert len(t.segments) == 1
    read = renderer.decode(t.tokens)
    assert 0 < read.index("No JSON.") < read.index("Found.")


async def test_stop_strings_are_obeyed_and_not_told(renderer):
    talk = Talk(renderer, ["Thought: Paris\nObservation: none", "x"])
    one = await talk.says(SYSTEM, ASK, stop=("Observation:",))
    assert (one.content, one.stop, one.stop_sequence) == ("Thought: Paris\n", "stop_sequence", "Observation:")
    await talk.says(SYSTEM, ASK, Entry("assistant", one.content), Entry("user", "Observation: sunny"))
    assert len(talk.end().segments) == 1


async def test_tokens_are_counted_as_they_will_be_sent(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}")
    count = await talk.session.count(request(SYSTEM, ASK))
    one = await talk.says(SYSTEM, ASK)
    assert one.usage.prompt == count
    behind = (SYSTEM, ASK, told(one), ASK)
    count = await talk.session.count(request(*behind))
    assert (await talk.says(*behind)).usage.prompt == count
    assert len(talk.end().segments) == 1, "counting leaves no trace"


async def test_turns_are_told_as_they_end(renderer):
    seen = []
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}", play=False)
    talk.session.play(talk.engine, renderer, talk.episode, None, "s", on_turn=lambda t: seen.append(len(t.turns)))
    one = await talk.says(SYSTEM, ASK)
    await talk.says(SYSTEM, ASK, told(one), ASK)
    assert seen == [1, 2]


async def test_all_sampled_so_far_can_be_masked(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}")
    one = await talk.says(SYSTEM, ASK)
    talk.session.mask("off_policy")
    two = await talk.says(SYSTEM, ASK, told(one), ASK)
    t = talk.end()
    assert (t.ledger.masked, t.ledger.trained) == ({"off_policy": one.usage.sampled}, two.usage.sampled)


async def test_tokens_behind_a_stop_string_that_the_engine_missed_are_in_no_turn(renderer):
    talk = Talk(renderer, lambda ids: "vation: a long rest" if talk.engine.answers else "Paris Obser")
    talk.engine.aborts(len(renderer.encode({"role": "assistant", "content": "Paris Obser"})) - 1)
    one = await talk.says(SYSTEM, ASK, stop=("Observation:",))
    assert (one.content, one.stop) == ("Paris ", "stop_sequence")
    returned = sum(len(got) for _, got in talk.engine.answers)
    talk.session.close("done")
    t = Trajectory()
    talk.session.write(t)
    assert t.ledger.sampled == one.usage.sampled < returned


async def test_every_line_is_forgotten_when_the_session_closes(renderer):
    talk = Talk(renderer, lambda ids: f"reply {len(ids)}")
    forgotten = []
    talk.engine.forget = forgotten.append
    await talk.says(SYSTEM, ASK)
    await talk.says(Entry("system", "Titles."), ASK, tools=())
    talk.end()
    assert sorted(forgotten) == ["s", "s.1"]


async def test_what_was_compared_in_a_sessions_prompts_is_counted(renderer):
    talk = Talk(renderer, [call("find", what="France"), "Paris"])
    first = await talk.says(SYSTEM, ASK)
    await talk.says(SYSTEM, ASK, told(first), *results(first, "It is Paris."))
    for prompt in talk.session.tree.prompts:
        prompt.rendered = replace(prompt.rendered, checks=CheckCounts(bridges_checked=1, bridges_different=2))
    assert talk.end().checks == CheckCounts(bridges_checked=2, bridges_different=4)
