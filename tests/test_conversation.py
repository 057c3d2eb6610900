"""A model is talked to without an Env, as a gateway does it."""

from __future__ import annotations

import pytest

from agentrl import EpisodeOptions, Generation, LedgerError, Limits, StopReason, Trajectory, TurnOptions
from agentrl._util.boundary import FailedError
from agentrl.engine import ScriptedEngine
from agentrl.episode.conversation import Conversation
from agentrl.errors import EngineError
from agentrl.testing import call

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


async def opened(renderer, script, **limits) -> Conversation:
    talk = Conversation(
        ScriptedEngine(script, renderer), renderer, Trajectory(), EpisodeOptions(limits=Limits(**limits))
    )
    await talk.open()
    talk.use_tools([TOOL])
    talk.begin([{"role": "user", "content": "Capital of France?"}])
    return talk


async def test_two_turns_without_an_env(renderer):
    talk = await opened(renderer, [call("find", what="France"), "Paris"])
    action, stop = await talk.sample()
    assert (action.calls[0].name, stop) == ("find", None)
    answer = {"role": "tool", "tool_call_id": action.calls[0].id, "name": "find", "content": "It is Paris."}
    assert talk.observe([answer]) is None
    action, stop = await talk.sample()
    assert (action.content, stop) == ("Paris", None)
    talk.trajectory.verify()
    ledger = talk.trajectory.ledger
    assert ledger.sampled == ledger.trained == sum(len(a.tokens) for a in talk.trajectory.actions)
    assert talk.engine.requests[1] == talk.trajectory.tokens[: len(talk.engine.requests[1])]


async def test_bounds_and_aborts_say_why_it_ends(renderer):
    talk = await opened(renderer, ["a long answer"])
    action, stop = await talk.sample(TurnOptions(max_tokens=2))
    assert (len(action.tokens), stop) == (2, StopReason.TURN_MAX_TOKENS)
    talk = await opened(renderer, ["Paris"], context=60)
    await talk.sample()
    before = talk.trajectory.tokens
    assert talk.observe([{"role": "user", "content": "And? " * 50}]) is StopReason.CONTEXT_FULL
    assert talk.trajectory.tokens == before
    talk = await opened(renderer, ["Paris"])
    talk.aborted = lambda: True
    assert await talk.sample() == (None, StopReason.ABORTED)


async def test_what_breaks_names_its_boundary(renderer):
    talk = await opened(renderer, [EngineError("gone")])
    with pytest.raises(FailedError) as failed:
        await talk.sample()
    assert (failed.value.failure.kind, failed.value.failure.boundary) == ("engine", "engine")
    with pytest.raises(LedgerError, match="there is none"):
        talk.observe([{"role": "user", "content": "Hello?"}])


@pytest.mark.parametrize("token", [None, -7, 2**70, 1.5, "x"])
async def test_what_is_no_token_is_refused_and_changes_nothing(renderer, token):
    talk = await opened(renderer, ["Paris"])
    before = talk.trajectory.to_json()
    with pytest.raises(LedgerError, match="token id"):
        talk.trajectory.append_model(Generation([5, token], [-0.5, -0.5], "stop"))
    assert talk.trajectory.to_json() == before


async def test_a_trajectory_prints_what_matters(renderer):
    talk = await opened(renderer, ["Paris"])
    await talk.sample()
    talk.trajectory.reward, talk.trajectory.session_id = 0.5, "s1"
    said = repr(talk.trajectory)
    assert said.startswith("<Trajectory s1: 1 turns, ")
    assert said.endswith(" sampled (6 trained), stop None, reward 0.5, answer 'Paris'>")


@pytest.mark.parametrize("answer", [([None], [-0.5]), ([5], [3.5]), ([5, 6], [-0.5]), ([5], [None]), ([-7], [-0.5])])
async def test_an_engine_that_answers_nonsense_has_failed_and_nobody_else(renderer, answer):
    talk = await opened(renderer, ["Paris"])

    async def nonsense(*args, **kwargs):
        return Generation(*answer, "stop")

    talk.engine.generate = nonsense
    before = talk.trajectory.to_json()
    with pytest.raises(FailedError, match="the engine's answer cannot be trained on") as failed:
        await talk.sample()
    assert (failed.value.failure.kind, failed.value.failure.boundary) == ("engine", "engine")
    assert talk.trajectory.to_json() == before
