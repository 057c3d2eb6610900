"""The answer of a session is the reply that the agent itself took for it."""

from __future__ import annotations

import pytest

from agentrl import SessionOptions, Trajectory
from agentrl.gateway.session.session import Session
from agentrl.monitor.metrics import EpisodeMetrics, RolloutMetrics
from agentrl.testing import call
from tests.gateway.acting import act
from tests.gateway.shapes_of_agents import SHAPES


@pytest.mark.parametrize("name", SHAPES)
async def test_the_answer_is_the_reply_that_run_returned(name):
    shape = SHAPES[name]
    played = await act(shape.run)
    assert played.failure is None
    assert (played.answer, played.info.get("result_differs", 0)) == (shape.answer.strip(), shape.differs)
    assert played.segment.said[-1].content.strip() == shape.answer.strip()


async def test_one_warning_names_the_remedy_for_a_result_that_is_no_reply(caplog):
    played = [await act(SHAPES["a_text_that_no_reply_holds"].run) for _ in range(2)]
    warned = [record.getMessage() for record in caplog.records if "no reply of the model" in record.getMessage()]
    assert len(warned) <= 1  # once in this process: another test may have been first
    assert [EpisodeMetrics.of(one).result_differs for one in played] == [1, 1]
    assert RolloutMetrics.of_groups([played]).result_differs == 2


async def test_only_the_answer_is_trained_as_the_main_line(caplog):
    shape = SHAPES["two_steps_under_two_instructions"]
    played = await act(shape.run, session=SessionOptions(side="mask"))
    planned, coded = played.segments
    assert (planned.ledger.trained, planned.branch) == (0, "side")
    assert (coded.ledger.masked, coded.branch, coded.said[-1].content) == ({}, "", shape.answer)


async def test_replies_after_the_answer_are_a_segment_of_their_own():
    played = await act(SHAPES["best_draft_is_not_the_last"].run)
    assert [[action.content for action in segment.said] for segment in played.segments] == [
        ["Guess 3 of the game"],
        ["Guess 1 of the game", "Guess 2 of the game"],
    ]
    assert [node["line"] for node in played.session["nodes"]] == ["main", "main", "earlier"]


async def test_a_session_that_is_read_from_its_log_has_the_same_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_SESSION_LOGS", str(tmp_path))
    played = await act(SHAPES["query_rewriting"].run)
    (path,) = tmp_path.iterdir()
    again = Trajectory()
    Session.replay(path.read_text().splitlines()).write(again)
    assert (again.answer, again.tokens) == (played.answer, played.tokens) == ("Rome.", played.tokens)


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("how", ["whole", "filtered", "nested"])
@pytest.mark.parametrize("returns", [True, False])
async def test_a_hand_off_of_openai_agents_ends_with_the_specialist(wire, how, returns):
    """Its history may be passed on whole, without calls, or as text."""
    agents = pytest.importorskip("agents")
    from agents.extensions.handoff_filters import nest_handoff_history, remove_all_tools

    async def hand_off(actor):
        kind = agents.OpenAIResponsesModel if wire == "responses" else agents.OpenAIChatCompletionsModel
        model = kind(model="any", openai_client=actor.client)
        specialist = agents.Agent(name="smith", instructions="You are the smith.", model=model)
        given = {"filtered": {"input_filter": remove_all_tools}, "nested": {"input_filter": nest_handoff_history}}
        to = agents.handoff(specialist, **given.get(how, {}))
        first = agents.Agent(name="desk", instructions="You route.", handoffs=[to], model=model)
        actor.script += [call("transfer_to_smith"), "Use solder."]
        done = await agents.Runner.run(first, "It broke.", run_config=agents.RunConfig(tracing_disabled=True))
        return done.final_output if returns else None

    played = await act(hand_off)
    assert (played.answer, played.info.get("result_differs", 0)) == ("Use solder.", 0)
    assert [node["line"] for node in played.session["nodes"]] == ["earlier", "main"]
