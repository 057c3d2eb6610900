"""Which replies are the agent's own work, and with which of them its work ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl import StopReason, Trajectory, load_renderer
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, Entry
from agentrl.models import load_tokenizer
from agentrl.testing import call
from agentrl.trajectory.model_output import ModelOutput
from tests.gateway.client import ASK, FIND, SYSTEM, Talk, results, told

MORE = {**FIND, "function": {**FIND["function"], "name": "more"}}
HELPER, TITLES = Entry("system", "You are a helper: do what you are told."), Entry("system", "You write titles.")
FOUND = "We looked up the lamp, the river and the stone; none of them was in France."
SUMMARY = f"<analysis>I thought about all of it.</analysis>\n<summary>\n{FOUND}\n</summary>"
REWRITTEN = f"This conversation goes on.\nSummary: {FOUND}"


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(load_tokenizer("tiny"))


def said(*replies):
    left = list(replies)
    return lambda ids: left.pop(0)


def finds(count: int):
    return [call("find", what=f"place {i}") for i in range(count)]


def kinds(t):
    return [node["line"] for node in t.session["nodes"]]


async def steps(talk, line, count, **given):
    """So many calls and their results, which grow the line."""
    for _ in range(count):
        reply = await talk.says(*line, **given)
        line += [told(reply), *results(reply, *("It is not there. " * 3 for _ in reply.calls))]
    return line


@pytest.mark.parametrize("window", [1, 5])
async def test_a_window_over_old_results_ends_with_the_last_reply(renderer, window):
    talk = Talk(renderer, said(*finds(39), "It is Paris."), options=SessionOptions(side="mask"))
    past = []
    for _ in range(40):
        cleared = len(past) - window
        line = [SYSTEM, ASK]
        for at, (reply, result) in enumerate(past):
            line += [reply, replace(result, text="[old content cleared]") if at < cleared else result]
        reply = await talk.says(*line)
        past += [(told(reply), *results(reply, "It is not there. " * 9))] if reply.calls else []
    t = talk.end()
    assert t.answer == t.segment.said[-1].content == "It is Paris."
    assert ModelOutput.of(t).answer == "It is Paris."
    assert sum(segment.ledger.masked.get("side", 0) for segment in t.segments) == 0
    assert [action.content or dict(action.calls[0].arguments)["what"] for action in t.said] == [
        *(f"place {i}" for i in range(39)),
        "It is Paris.",
    ]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("where", ["user", "task", "system"])
async def test_a_summary_that_the_client_writes_anew(renderer, where, times):
    script = [x for _ in range(times) for x in (*finds(2), SUMMARY)]
    talk = Talk(renderer, said(*script, *finds(1), "It is Paris."), options=SessionOptions(side="mask"))
    opening = [SYSTEM, ASK]
    for _ in range(times):
        line = await steps(talk, [*opening], 2)
        await talk.says(*line, Entry("user", "Summarise."))
        opening = {
            "user": [SYSTEM, Entry("user", REWRITTEN)],
            "task": [SYSTEM, replace(ASK, text=f"{ASK.text}\n{REWRITTEN}")],
            "system": [replace(SYSTEM, text=f"{SYSTEM.text}\n{REWRITTEN}"), ASK],
        }[where]
    line = await steps(talk, [*opening], 1)
    await talk.says(*line)
    t = talk.end()
    assert t.answer == "It is Paris."
    assert "side" not in [node["masked"] for node in t.session["nodes"] if node["id"] % 3 != 2]


async def test_a_sub_agent_that_ends_last_is_no_main_line(renderer):
    """Whatever it opens with: its main one's own instructions and tools, or others."""
    for system, tools in ((HELPER, (FIND,)), (HELPER, (MORE,)), (HELPER, ()), (SYSTEM, (FIND,))):
        script = said(call("find", what="France"), "Helping.", "It is Paris.", "I helped.", "Helped again.")
        talk = Talk(renderer, script, options=SessionOptions(side="mask"))
        line, side = [SYSTEM, ASK], [system, Entry("user", "Look for rivers.")]
        one = await talk.says(*line)
        helping = await talk.says(*side, tools=tools)
        await talk.says(*line, told(one), *results(one, "started"))
        helped = await talk.says(*side, told(helping), Entry("user", "Go on."), tools=tools)
        more = [told(helping), Entry("user", "Go on."), told(helped), Entry("user", "Once more.")]
        await talk.says(*side, *more, tools=tools)
        t = talk.end()
        assert t.answer == "It is Paris.", (system, tools)
        assert [action.content for action in t.said] == ["", "Helping.", "It is Paris.", "I helped.", "Helped again."]
        assert kinds(t) == ["main", "side", "main", "side", "side"]
        assert ModelOutput.of(t).answer == "It is Paris."


async def test_a_sub_agent_that_outlives_the_session_is_no_main_line(renderer):
    """The main line waits for it, and a limit ends both."""
    script = said(call("find", what="Look for rivers in France."), call("find", what="rivers"), "There are rivers.")
    talk = Talk(renderer, script)
    await talk.says(SYSTEM, ASK)
    side = [SYSTEM, Entry("user", "Look for rivers in France.")]
    helping = await talk.says(*side)
    await talk.says(*side, told(helping), *results(helping, "many"))
    assert kinds(talk.end()) == ["main", "side", "side"]


async def test_a_sub_agent_with_its_parents_history(renderer):
    script = said(call("find", what="Look for rivers in France."), "Helping.", "It is Paris.", "I helped.")
    talk = Talk(renderer, script)
    one = await talk.says(SYSTEM, ASK)
    forked = [SYSTEM, ASK, told(one), *results(one, "started"), Entry("user", "Look for rivers in France.")]
    helping = await talk.says(*forked)
    await talk.says(SYSTEM, ASK, told(one), *results(one, "started"))
    await talk.says(*forked, told(helping), Entry("user", "Go on."))
    t = talk.end()
    assert (t.answer, kinds(t)) == ("It is Paris.", ["main", "side", "main", "side"])


@pytest.mark.parametrize("tools", [(), (FIND,)])
async def test_titles_before_and_after_are_side_lines(renderer, tools):
    first = call("find", what="x") if tools else "Let me see."
    talk = Talk(renderer, said("A title", first, "Paris it is, the capital of France.", "Another title"))
    await talk.says(TITLES, ASK, tools=())
    one = await talk.says(SYSTEM, ASK, tools=tools)
    two = await talk.says(SYSTEM, ASK, told(one), *(results(one, "Paris") if tools else [ASK]), tools=tools)
    await talk.says(TITLES, Entry("user", f"A title for {two.content}"), tools=())
    t = talk.end()
    assert (t.answer, kinds(t)) == (two.content, ["side", "main", "main", "side"])


async def test_an_answer_without_tools_once_the_steps_are_used_up(renderer):
    talk = Talk(renderer, said(*finds(2), "It is Paris."))
    line = await steps(talk, [SYSTEM, ASK], 2)
    await talk.says(replace(SYSTEM, text="Answer."), *line[1:], Entry("user", "Answer now."), tools=())
    t = talk.end()
    assert (t.answer, kinds(t)[-1]) == ("It is Paris.", "main")


async def test_a_title_of_a_history_that_is_done_is_a_side_line(renderer):
    talk = Talk(renderer, said(*finds(1), "It is Paris.", "A title"))
    line = await steps(talk, [SYSTEM, ASK], 2)
    await talk.says(*line, Entry("user", "A title, please."), tools=())
    assert talk.end().answer == "It is Paris."


async def test_the_answer_is_a_reply_that_the_client_got(renderer):
    talk = Talk(renderer, said("It is Paris.", "Lost."))
    one = await talk.says(SYSTEM, ASK)
    exchange = talk.ask(SYSTEM, ASK, told(one), Entry("user", "Sure?"))
    await talk.replies(exchange)
    exchange.lost()
    t = talk.end()
    assert (t.answer, ModelOutput.of(t).answer, len(t.segments)) == ("It is Paris.", "It is Paris.", 1)


async def test_turns_are_in_order_of_time_and_so_is_what_belongs_to_them(renderer):
    talk = Talk(renderer, said(*finds(1), "Helping.", "It is Paris.", "I helped."))
    one = await talk.says(SYSTEM, ASK)
    helping = await talk.says(HELPER, ASK, tools=())
    await talk.says(SYSTEM, ASK, told(one), *results(one, "The result."))
    await talk.says(HELPER, ASK, told(helping), Entry("user", "Go on."), tools=())
    t = talk.end()
    assert [len(segment.turns) for segment in t.segments] == [2, 2]
    assert list(t.order) == [1, 3, 0, 2]
    assert [list(values) for _, values in t.by_segment("abcd")] == [["b", "d"], ["a", "c"]]
    written = ModelOutput.of(t)
    assert written.observed == ("The result.", "Go on.")
    assert [turn.sampled_tokens for turn in t.turns] == [len(action.tokens) for action in t.actions]
    t.mask("malformed", turn=1)
    assert t.segments[0].ledger.masked == {"malformed": t.turns[1].sampled_tokens}
    again = Trajectory.from_json(t.to_json())
    assert [action.text for action in again.actions] == [action.text for action in t.actions]
    assert (again.answer, ModelOutput.of(again).observed) == ("It is Paris.", written.observed)


# What the client tells


@pytest.mark.parametrize("policy", ["train", "mask"])
async def test_a_reply_in_other_words_in_its_place_is_not_dropped(renderer, policy):
    """As smolagents' CodeAgent tells replies: without ids, and with what it makes of them."""
    script = [f"Thought {i}\n<code>f({i})" for i in range(4)]
    talk = Talk(renderer, said(*script, "It is Paris."), options=SessionOptions(dropped=policy, side="mask"))
    line = [SYSTEM, ASK]
    for _ in range(5):
        reply = await talk.says(*line, tools=())
        line += [Entry("assistant", f"{reply.content}\n</code>"), Entry("user", "Observation: none")]
    t = talk.end()
    assert t.info["agent"]["dropped"] == 0
    assert all(segment.ledger.masked == {} for segment in t.segments)
    assert talk.audits == ["told_in_other_words"] * 4
    assert kinds(t) == [*["earlier"] * 4, "main"]


async def test_a_stop_string_that_the_client_puts_back_is_the_same_reply(renderer):
    talk = Talk(renderer, said("<code>f(1)</code>", "It is Paris."))
    one = await talk.says(SYSTEM, ASK, tools=(), stop=("</code>",))
    assert one.content == "<code>f(1)"
    await talk.says(SYSTEM, ASK, Entry("assistant", f"{one.content}</code>"), Entry("user", "none"), tools=())
    assert (len(talk.end().segments), talk.audits) == (1, [])


async def test_a_reply_that_quotes_an_id_is_itself(renderer):
    talk = Talk(renderer, lambda ids: left.pop(0))
    left = [call("find", what="France"), None, "Sure."]
    one = await talk.says(SYSTEM, ASK)
    words = f"The agent {one.calls[0].id} is done. Calling tools:\n[{{'id': '{one.calls[0].id}'}}]"
    left[0] = f"The agent {one.calls[0].id} is done, and so am I."
    line = [SYSTEM, ASK, told(one), *results(one, f"agent {one.calls[0].id} started")]
    two = await talk.says(*line)
    left[0] = "Sure."
    await talk.says(*line, Entry("assistant", two.content), Entry("user", "Sure?"))
    t = talk.end()
    assert [len(segment.turns) for segment in t.segments] == [3]
    assert f"{one.calls[0].id} is done, and so am I." in renderer.decode(talk.engine.requests[2])
    other = Talk(renderer, said("Paris"))
    other.session.tree = talk.session.tree
    assert talk.session.tree._written_out(Entry("assistant", words)) is None, "words that no reply has"


@pytest.mark.parametrize("ends", [1, 2])
async def test_a_second_edit_of_a_reply_is_obeyed_and_noted(renderer, ends):
    long = "a long file " * 30
    talk = Talk(renderer, said(call("find", what=long), *finds(1), "Done.", "Bye."))
    line = await steps(talk, [SYSTEM, ASK], 2)
    cleared = replace(line[2], calls=tuple(Call(c.id, c.name, {"what": "[cleared]"}) for c in line[2].calls))
    edited = [*line[:2], cleared, *line[3:]]
    three = await talk.says(*edited)
    if ends == 2:
        await talk.says(*edited, told(three), Entry("user", "Bye."))
    t = talk.end()
    sent = renderer.decode(talk.engine.requests[2])
    assert "[cleared]" in sent
    assert long not in sent
    assert talk.audits == ["edited"]
    assert (t.segments[0].ledger.masked, t.info["agent"]["dropped"]) == ({}, 0)
    assert (t.answer, kinds(t)) == (["Done.", "Bye."][ends - 1], ["earlier", "earlier", *["main"] * ends])


async def test_an_edit_that_comes_first_is_a_clients_spelling(renderer):
    """Many clients tell calls in a way of their own, always the same: what was sampled is kept."""
    talk = Talk(renderer, said(*finds(1), "Paris", "Yes."))
    one = await talk.says(SYSTEM, ASK)
    own = replace(told(one), calls=(Call(one.calls[0].id, "invalid", {"error": "x"}),))
    two = await talk.says(SYSTEM, ASK, own, *results(one, "Paris"))
    await talk.says(SYSTEM, ASK, own, *results(one, "Paris"), told(two), Entry("user", "Sure?"))
    assert (len(talk.end().segments), talk.audits) == (1, ["told_in_another_meaning"])


async def test_equal_requests_at_once_are_several_and_none_is_dropped(renderer):
    talk = Talk(renderer, said("Paris", "Lyon", "Nice"))
    asked = [talk.ask(SYSTEM, ASK, digest="same") for _ in range(3)]
    for each in asked:
        await talk.replies(each)
        each.delivered()
    t = talk.end()
    assert (t.info["agent"]["replies"], t.info["agent"]["dropped"], t.info["agent"]["replayed"]) == (3, 0, 0)
    assert t.ledger.trained == t.ledger.sampled
    assert t.stop in (None, StopReason.DONE)
