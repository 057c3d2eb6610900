"""Sessions: what a client gets, whatever happens to it."""

from __future__ import annotations

from agentrl.testing import call
from tests.gateway.client import ASK, SYSTEM, Entry, Talk, results, told


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
