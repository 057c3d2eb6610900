"""The table of decisions: for each thing that a client may send, what becomes of it. One test a row."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agentrl import ConfigError, EpisodeOptions, Limits
from agentrl._util.seeds import nth_seed
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, Entry, RefusedError
from agentrl.gateway.session.session import Session
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.testing import call
from tests.episode.thinking import TEMPLATE
from tests.gateway.client import ASK, FIND, SYSTEM, Talk, results, told

SURE, REALLY = Entry("user", "Are you sure?"), Entry("user", "Really?")


def numbered(ids):
    """A reply of its own for each prompt."""
    return f"reply {len(ids)}"


def lengths(trajectory):
    """Turns of each segment."""
    return [len(segment.turns) for segment in trajectory.segments]


async def test_path_reply_and_new_blocks_go_on_with_the_line(renderer):
    talk = Talk(renderer, [call("find", what="France"), "Paris", "Yes."])
    one = await talk.says(SYSTEM, ASK)
    history = [SYSTEM, ASK, told(one), *results(one, "It is Paris.")]
    two = await talk.says(*history)
    await talk.says(*history, told(two), SURE)
    sent = talk.engine.requests
    assert sent[1][: len(sent[0])] == sent[0]
    assert sent[2][: len(sent[1])] == sent[1]
    t = talk.end()
    assert (lengths(t), t.ledger.trained, talk.audits) == ([3], t.ledger.sampled, [])


async def test_a_user_message_that_grew_by_a_block_still_shares_what_stands_before(renderer):
    talk = Talk(renderer, numbered)
    one = await talk.says(SYSTEM, ASK)
    await talk.says(SYSTEM, ASK, told(one), SURE)
    await talk.says(SYSTEM, ASK, told(one), SURE, Entry("user", "Summarise.", joined=True))
    t = talk.end()
    assert lengths(t) == [1, 2]
    shared = len(talk.engine.requests[0]) + one.usage.sampled
    assert talk.engine.requests[2][:shared] == talk.engine.requests[1][:shared]


SPELLINGS = {
    "order of keys, defaults filled in": lambda sent: replace(
        sent, calls=(replace(sent.calls[0], arguments={"deep": False, **sent.calls[0].arguments}),)
    ),
    "outer spaces": lambda sent: replace(sent, text=f"\n {sent.text} "),
    "no ids of items": lambda sent: replace(sent, receipts=()),
    "other ids of calls": lambda sent: replace(sent, calls=(replace(sent.calls[0], id="toolu_1"),)),
    "a thought made up": lambda sent: replace(sent, reasoning="Hm."),
    "a thought in the text": lambda sent: replace(sent, text=f"<think>Hm.</think>\n{sent.text}"),
    "no ids at all": lambda sent: replace(sent, calls=(replace(sent.calls[0], id=""),), receipts=()),
    "in two messages": lambda sent: [replace(sent, calls=()), replace(sent, text="")],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_reply_told_in_another_spelling(renderer, spelling):
    said = {**call("find", what="France"), "content": "Let me see."}
    talk = Talk(renderer, [said, "Paris"])
    one = await talk.says(SYSTEM, ASK)
    echo = SPELLINGS[spelling](told(one))
    await talk.says(SYSTEM, ASK, *(echo if isinstance(echo, list) else [echo]), *results(one, "It is Paris."))
    t = talk.end()
    assert (lengths(t), t.ledger.trained) == ([2], t.ledger.sampled)
    noted = {"order of keys, defaults filled in", "outer spaces", "a thought made up", "a thought in the text"}
    assert talk.audits == (["told_in_another_spelling"] if spelling in noted else [])
    if "order" in spelling:
        (audit,) = t.session["audits"]
        assert "deep" in audit["told"]
        assert "deep" not in audit["stored"]


MEANINGS = {
    "another name": lambda sent: Call(sent.id, "invalid", {"error": "x"}),
    "no arguments": lambda sent: Call(sent.id, sent.name, {}),
    "unparsed": lambda sent: Call(sent.id, sent.name, {"__unparsedToolInput": {"raw": "x", "len": 1}}),
    "repaired": lambda sent: Call(sent.id, sent.name, {"what": "Francе"}),
}


@pytest.mark.parametrize("meaning", MEANINGS)
async def test_a_reply_told_with_another_meaning(renderer, meaning):
    for echo, segments in (("stored", 1), ("as_sent", 2)):
        talk = Talk(renderer, lambda ids: call("find", what=str(len(ids))), options=SessionOptions(echo=echo))
        one = await talk.says(SYSTEM, ASK)
        other = replace(told(one), calls=(MEANINGS[meaning](told(one).calls[0]),))
        two = await talk.says(SYSTEM, ASK, other, *results(one, "No such tool."))
        await talk.says(SYSTEM, ASK, other, *results(one, "No such tool."), told(two), *results(two, "Fine."))
        t = talk.end()
        assert len(t.segments) == segments
        assert t.ledger.sampled == t.ledger.trained
        assert talk.audits == (["told_in_another_meaning"] if echo == "stored" else [])
        if echo == "as_sent":
            assert other.calls[0].name in renderer.decode(talk.engine.requests[1])


async def test_an_assistants_message_that_nobody_sampled_is_prompt(renderer):
    talk = Talk(renderer, numbered)
    example = [Entry("user", "Capital of Spain?"), Entry("assistant", "Madrid.")]
    one = await talk.says(SYSTEM, *example, ASK)
    await talk.says(SYSTEM, *example, ASK, told(one), SURE, Entry("assistant", "Got it."), REALLY)
    t = talk.end()
    assert lengths(t) == [2]
    assert "Madrid." in renderer.decode(t.tokens[: t.prompt_length])
    observed = [renderer.decode(t.response[s.start : s.stop]) for s in t.segment.spans if s.kind == "observation"]
    assert "Got it." in "".join(observed)


@pytest.mark.parametrize("ids", [True, False])
async def test_a_known_reply_behind_another_prefix_is_prompt_as_it_was_sampled(renderer, ids):
    odd = {**call("find", what="France"), "content": "Let  me   see."}
    talk = Talk(renderer, lambda ids: odd if "Capital" in renderer.decode(ids) else f"reply {len(ids)}")
    one = await talk.says(SYSTEM, ASK)
    tokens = talk.engine.answers[0][1]
    echo = told(one) if ids else replace(told(one), receipts=(), calls=(replace(told(one).calls[0], id="x"),))
    behind = [SYSTEM, Entry("user", "Summary: we look for a city."), echo, *results(one, "It is Paris.")]
    two = await talk.says(*behind)
    sent = talk.engine.requests[1]
    assert any(sent[i : i + len(tokens)] == tokens for i in range(len(sent)))
    await talk.says(*behind, told(two), SURE)
    t = talk.end()
    assert (lengths(t), t.info["agent"]["roots"]) == ([1, 2], 2)
    assert sum(s.ledger.sampled for s in t.segments) == sum(len(got) for _, got in talk.engine.answers)
    assert t.answer.startswith("reply"), "the main line is where the conversation went on"


@pytest.mark.parametrize("policy", ["train", "mask"])
@pytest.mark.parametrize("told_error", [True, False])
async def test_a_dropped_reply_is_a_leaf(renderer, policy, told_error):
    talk = Talk(renderer, numbered, options=SessionOptions(dropped=policy))
    one = await talk.says(SYSTEM, ASK)
    dropped = await talk.says(SYSTEM, ASK, told(one), SURE)
    error = [Entry("user", "No tool was called.")] if told_error else []
    two = await talk.says(SYSTEM, ASK, told(one), SURE, *error)
    await talk.says(SYSTEM, ASK, told(one), SURE, *error, told(two), REALLY)
    t = talk.end()
    assert lengths(t) == [1, 3]
    masked = {"dropped": dropped.usage.sampled} if policy == "mask" else {}
    assert t.segments[0].ledger.masked == masked
    assert t.info["agent"]["dropped"] == 1


async def test_a_first_reply_that_is_dropped_is_not_the_main_line(renderer):
    talk = Talk(renderer, numbered)
    await talk.says(SYSTEM, ASK)
    error = Entry("user", "No tool was called.")
    two = await talk.says(SYSTEM, ASK, error)
    await talk.says(SYSTEM, ASK, error, told(two), SURE)
    t = talk.end()
    assert lengths(t) == [1, 2]
    assert set(talk.engine.session_ids) == {"s"}, "the worker that has the beginning"


async def test_a_part_of_a_reply_gets_its_rest_and_nothing_is_sampled(renderer):
    thinker = load_renderer(load_tokenizer("tiny"), chat_template=TEMPLATE)
    said = {**call("find", what="France"), "reasoning_content": "I must look."}
    talk = Talk(thinker, [said, "Paris"])
    exchange = talk.ask(SYSTEM, ASK, wire="responses", digest="a")
    (one,) = await talk.replies(exchange)
    exchange.lost()
    assert one.reasoning is not None
    thought = Entry("assistant", reasoning=one.reasoning, receipts=(one.receipt,))
    rest = await talk.says(SYSTEM, ASK, thought, wire="responses", digest="b")
    assert (rest.without_reasoning, rest.calls, rest.id) == (True, one.calls, one.id)
    assert await talk.says(SYSTEM, ASK, thought, wire="responses", digest="b", retried=True) == rest
    assert len(talk.engine.requests) == 1
    await talk.says(SYSTEM, ASK, told(one), *results(one, "Paris."), wire="responses")
    t = talk.end()
    assert (lengths(t), t.ledger.masked, talk.audits) == ([2], {}, [])


@pytest.mark.parametrize("policy", ["train", "mask"])
async def test_another_system_or_other_tools_are_a_root(renderer, policy):
    talk = Talk(renderer, numbered, options=SessionOptions(side=policy))
    await talk.says(Entry("system", "Write a title."), ASK, tools=())
    one = await talk.says(SYSTEM, ASK)
    helper = await talk.says(Entry("system", "You are a helper."), Entry("user", "Help."), branch="thread-2")
    await talk.says(SYSTEM, ASK, told(one), SURE)
    t = talk.end()
    assert (lengths(t), t.info["agent"]["roots"]) == ([1, 1, 2], 3)
    assert talk.engine.session_ids == ["s", "s.1", "s.2", "s.1"]
    masked = {"side": helper.usage.sampled} if policy == "mask" else {}
    assert t.segments[1].ledger.masked == masked
    assert t.ledger.masked == {}


@pytest.mark.parametrize("sticky", [False, True])
async def test_no_tools_behind_a_known_history(renderer, sticky):
    talk = Talk(renderer, numbered, options=SessionOptions(sticky_tools=sticky))
    one = await talk.says(SYSTEM, ASK)
    await talk.says(SYSTEM, ASK, told(one), Entry("user", "Summarise."), tools=())
    sent = talk.engine.requests
    assert ("Tools: find" in renderer.decode(sent[1])) is sticky
    t = talk.end()
    assert lengths(t) == ([2] if sticky else [1, 1])
    sampled = talk.engine.answers[0][1]
    assert any(sent[1][i : i + len(sampled)] == sampled for i in range(len(sent[1]))), "known, as it was sampled"


async def test_tools_that_a_result_loads_stand_behind_it(renderer):
    late = {"type": "function", "function": {"name": "late_tool", "parameters": {"type": "object", "properties": {}}}}
    talk = Talk(renderer, [call("find", what="tools"), "Thanks."])
    one = await talk.says(SYSTEM, ASK)
    (result,) = results(one, "found")
    await talk.says(SYSTEM, ASK, told(one), replace(result, loads=("late_tool",)), deferred={"late_tool": late})
    t = talk.end()
    assert lengths(t) == [2]
    assert "late_tool" not in renderer.decode(talk.engine.requests[0])
    assert "late_tool" in renderer.decode(talk.engine.requests[1])


async def test_instructions_stand_in_the_tokens_wherever_they_came(renderer):
    talk = Talk(renderer, numbered)
    one = await talk.says(Entry("developer", "First of all."), ASK)
    await talk.says(Entry("developer", "First of all."), ASK, told(one), SURE, Entry("system", "Be brief."))
    text = renderer.decode(talk.engine.requests[1])
    assert text.index("First of all.") < text.index("Are you sure?") < text.index("Be brief.")
    assert lengths(talk.end()) == [2]


async def test_thoughts_are_kept_whatever_the_client_does_with_them(renderer):
    thinker = load_renderer(load_tokenizer("tiny"), chat_template=TEMPLATE)
    talk = Talk(thinker, [{"role": "assistant", "content": "Paris", "reasoning_content": "I know."}, "Yes."])
    one = await talk.says(SYSTEM, ASK)
    await talk.says(SYSTEM, ASK, Entry("assistant", one.content), SURE)
    t = talk.end()
    assert (lengths(t), talk.audits) == ([2], ["told_in_another_spelling"])
    with pytest.raises(ConfigError, match='set thinking to "keep"'):
        Session("k").play(talk.engine, thinker, EpisodeOptions(thinking="strip"), None, "s")
    with pytest.raises(ConfigError, match=r"an agent writes its own summaries: leave out limits\.compact_at"):
        Session("k").play(talk.engine, thinker, EpisodeOptions(limits=Limits(compact_at=100)), None, "s")


@pytest.mark.parametrize("when", ["running", "whole"])
async def test_the_same_body_before_the_answer_was_got_gets_the_same_reply(renderer, when):
    talk = Talk(renderer, numbered)
    talk.engine.gate.clear()
    first = talk.ask(SYSTEM, ASK, digest="a")
    await first.accepted()
    if when == "whole":
        talk.engine.gate.set()
        await first.replies()
    first.lost()
    second = talk.ask(SYSTEM, ASK, digest="a")
    talk.engine.gate.set()
    (reply,) = await second.replies()
    second.delivered()
    assert talk.events("join", "replay") == (["replay"] if when == "whole" else ["join"])
    await talk.says(SYSTEM, ASK, told(reply), SURE)
    t = talk.end()
    assert (lengths(t), t.ledger.masked, len(talk.engine.requests)) == ([2], {}, 2)


async def test_a_retry_in_another_body_is_known_by_its_place_once_the_client_is_gone(renderer):
    talk = Talk(renderer, numbered)
    first = talk.ask(SYSTEM, ASK, digest="streamed", stream=True)
    (reply,) = await first.replies()
    first.lost()
    again = await talk.says(SYSTEM, ASK, digest="not streamed")
    assert again == reply
    assert lengths(talk.end()) == [1]


async def test_the_same_body_after_the_answer_was_got(renderer):
    talk = Talk(renderer, iter_of("one", "two"))
    first = await talk.says(SYSTEM, ASK, digest="a")
    assert await talk.says(SYSTEM, ASK, digest="a", retried=True) == first
    other = await talk.says(SYSTEM, ASK, digest="a")
    assert (first.content, other.content) == ("one", "two")
    assert other.id != first.id
    t = talk.end()
    assert lengths(t) == [1, 1]
    seeds = [params["sampling_seed"] for params in talk.engine.params]
    assert seeds == [7, nth_seed(7, 1)], "else both would be the same"


async def test_no_two_replies_of_a_group_share_prompt_and_seed(renderer):
    """slime gives the eight episodes of a group the seeds from its own one on, one after the other."""
    drawn, again = [], []
    for seeds in (drawn, again):
        for episode in range(8):
            talk = Talk(renderer, numbered, play=False)
            talk.episode = replace(talk.episode, sampling_params={"sampling_seed": 42 + episode})
            talk.play()
            for solver in range(3):
                await talk.says(SYSTEM, ASK, digest=f"solver {solver}")
            seeds += [params["sampling_seed"] for params in talk.engine.params]
            talk.end()
    assert len(set(drawn)) == 24
    assert drawn == again
    assert drawn[::3] == list(range(42, 50)), "the first reply is sampled as the host does it"


def iter_of(*texts):
    """The texts in order, whatever the prompt."""
    left = list(texts)
    return lambda ids: left.pop(0)


async def test_n_replies_are_siblings(renderer):
    talk = Talk(renderer, iter_of("one", "two", "three", "four"))
    exchange = talk.ask(SYSTEM, ASK, n=3)
    replies = await talk.replies(exchange)
    exchange.delivered()
    assert [reply.content for reply in replies] == ["one", "two", "three"]
    await talk.says(SYSTEM, ASK, Entry("assistant", "two"), SURE)
    t = talk.end()
    assert lengths(t) == [1, 1, 2]
    assert t.info["agent"]["dropped"] == 0
    with pytest.raises(RefusedError, match="n is 9; ask for 1 to 8 replies"):
        await Talk(renderer, numbered).ask(SYSTEM, ASK, n=9).accepted()


async def test_parallel_requests_are_sampled_beside_each_other(renderer):
    talk = Talk(renderer, numbered)
    talk.engine.gate.clear()
    asks = [talk.ask(SYSTEM, Entry("user", f"Question {i}")) for i in range(3)]
    for ask in asks:
        await ask.accepted()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(talk.engine.params) == 3, "no lock is held while one is sampled"
    talk.engine.gate.set()
    for ask in asks:
        await ask.replies()
        ask.delivered()
    assert lengths(talk.end()) == [1, 1, 1]


async def test_a_client_that_is_gone_leaves_a_reply_that_is_not_trained(renderer):
    talk = Talk(renderer, numbered)
    one = await talk.says(SYSTEM, ASK)
    talk.engine.gate.clear()
    asked = talk.ask(SYSTEM, ASK, told(one), SURE)
    await asked.accepted()
    asked.lost()
    talk.engine.gate.set()
    await asked.replies()
    t = talk.end()
    assert lengths(t) == [2]
    lost = len(talk.engine.answers[1][1])
    assert t.ledger.masked == {"undelivered": lost}
    assert t.ledger.trained == t.ledger.sampled - lost


async def test_nobody_waits_for_ever_for_a_client_that_is_gone(renderer, monkeypatch):
    monkeypatch.setattr("agentrl.gateway.session.session._ORPHAN_S", 0)
    talk = Talk(renderer, numbered)
    talk.engine.gate.clear()
    asked = talk.ask(SYSTEM, ASK)
    await asked.accepted()
    asked.lost()
    with pytest.raises(RefusedError):
        await asked.replies()
    talk.engine.gate.set()
    await talk.says(SYSTEM, ASK)
    assert lengths(talk.end()) == [1]


async def test_a_request_that_ends_in_an_assistants_message(renderer):
    for wire, last in (("messages", "Well, "), ("chat", "Well, <|im_end|>\n<|im_start|>assistant\n")):
        talk = Talk(renderer, numbered)
        one = await talk.says(SYSTEM, ASK, wire=wire)
        given = {"wire": wire, "continued": wire == "messages"}
        await talk.says(SYSTEM, ASK, told(one), SURE, Entry("assistant", "Well, "), **given)
        assert renderer.decode(talk.engine.requests[1]).endswith(last)
        await talk.says(SYSTEM, Entry("assistant", "Well, "), **given)
        assert renderer.decode(talk.engine.requests[2]).endswith(last)
        assert lengths(talk.end()) == [2, 1]


async def test_a_reply_that_was_cut(renderer):
    for wire in ("messages", "chat"):
        talk = Talk(renderer, iter_of("a long answer to this", " and its end"))
        one = await talk.says(SYSTEM, ASK, max_tokens=3, wire=wire)
        assert (one.stop, one.usage.sampled, one.calls) == ("length", 3, ())
        await talk.says(SYSTEM, ASK, told(one), wire=wire, continued=wire == "messages")
        sent = talk.engine.requests
        before = sent[0] + talk.engine.answers[0][1]
        assert sent[1][: len(before)] == before
        assert (sent[1] == before) is (wire == "messages"), "Anthropic's clients go on with the turn"
        assert lengths(talk.end()) == [2]


async def test_a_full_context_is_said_in_words_that_clients_know(renderer):
    talk = Talk(renderer, numbered, limits=Limits(context=120))
    one = await talk.says(SYSTEM, ASK, tools=())
    with pytest.raises(RefusedError, match=r"^prompt is too long: \d+ tokens > 120 maximum$") as refused:
        await talk.ask(SYSTEM, ASK, told(one), Entry("user", "x" * 300), tools=()).accepted()
    assert (refused.value.kind, refused.value.status) == ("context_full", 400)
    await talk.says(SYSTEM, Entry("user", f"Summary: {one.content}"), tools=())
    assert len(talk.end().segments) == 2


async def test_a_client_that_ends_at_a_full_context(renderer):
    for limits, stop in ((Limits(context=120), "context_full"), (Limits(tokens=60), "max_tokens")):
        talk = Talk(renderer, numbered, limits=limits)
        one = await talk.says(SYSTEM, ASK, tools=())
        refused = talk.ask(SYSTEM, ASK, told(one), Entry("user", "x" * 300), tools=())
        with pytest.raises(RefusedError, match="prompt is too long"):
            await refused.replies()
        talk.end()
        assert talk.session.stop == stop


async def test_ids_that_a_client_writes_into_the_text_are_known(renderer):
    talk = Talk(renderer, [call("find", what="France"), "Paris"])
    one = await talk.says(SYSTEM, ASK)
    text = f"Calling tools:\n[{{'id': '{one.calls[0].id}', 'function': {{'name': 'find'}}}}]"
    await talk.says(SYSTEM, ASK, Entry("assistant", text), Entry("user", "Observation: Paris"))
    assert lengths(talk.end()) == [2]


async def test_of_twins_the_one_that_the_client_got_goes_on(renderer):
    talk = Talk(renderer, lambda ids: "Paris")
    one = await talk.says(SYSTEM, ASK, digest="a")
    lost = talk.ask(SYSTEM, ASK, digest="b")
    await talk.replies(lost)
    lost.lost()
    await talk.says(SYSTEM, ASK, Entry("assistant", "Paris"), SURE)
    t = talk.end()
    assert lengths(t) == [1, 2]
    assert t.segments[0].ledger.masked == {"undelivered": one.usage.sampled}


async def test_equal_sub_agents_at_once_are_siblings(renderer):
    talk = Talk(renderer, iter_of("one", "two"))
    talk.engine.gate.clear()
    asked = [talk.ask(SYSTEM, ASK, digest=name, branch=name) for name in ("a", "b")]
    talk.engine.gate.set()
    replies = [(await talk.replies(each))[0] for each in asked]
    for each in asked:
        each.delivered()
    assert sorted(reply.content for reply in replies) == ["one", "two"], "either asks the engine first"
    assert lengths(talk.end()) == [1, 1]


async def test_a_past_that_the_client_changed_begins_a_branch_with_known_replies(renderer):
    talk = Talk(renderer, [call("find", what="France"), "Paris", "Yes."])
    one = await talk.says(SYSTEM, ASK)
    line = [SYSTEM, ASK, told(one), *results(one, "It is Paris. " * 9)]
    two = await talk.says(*line)
    cleared = [SYSTEM, ASK, told(one), *results(one, "[cleared]"), told(two), SURE]
    await talk.says(*cleared)
    t = talk.end()
    assert lengths(t) == [1, 2]
    assert "[cleared]" in renderer.decode(t.tokens)
    sampled = talk.engine.answers[1][1]
    assert any(t.tokens[i : i + len(sampled)] == sampled for i in range(t.segment.length)), "as it was sampled"
    assert t.ledger.sampled == one.usage.sampled + len(talk.engine.answers[2][1]), "but not trained here"


async def test_tools_that_change_in_the_middle_begin_a_root_that_is_the_main_line(renderer):
    talk = Talk(renderer, numbered)
    one = await talk.says(SYSTEM, ASK)
    two = await talk.says(SYSTEM, ASK, told(one), SURE, tools=(FIND, {**FIND, "function": {"name": "more"}}))
    t = talk.end()
    assert (lengths(t), t.answer) == ([1, 1], two.content)
    assert [node["line"] for node in t.session["nodes"]] == ["earlier", "main"]
