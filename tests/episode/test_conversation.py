"""A model is talked to without an Env, as a gateway does it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl import EpisodeOptions, Generation, LedgerError, Limits, StopReason, Trajectory, TurnOptions
from agentrl._util.boundary import FailedError
from agentrl.engine import ScriptedEngine
from agentrl.episode.conversation import Conversation
from agentrl.errors import EngineError
from agentrl.testing import call

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


async def opened(renderer, script, *, engine=None, **limits) -> Conversation:
    engine = engine or ScriptedEngine(script, renderer)
    talk = Conversation(engine, renderer, Trajectory(), EpisodeOptions(limits=Limits(**limits)))
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


async def test_a_method_named_answer_makes_no_engine_of_messages(renderer):
    class Answering(ScriptedEngine):
        async def answer(self):
            raise AssertionError("an engine of tokens is asked with tokens")

    talk = await opened(renderer, [], engine=Answering(["Paris"], renderer))
    action, _ = await talk.sample()
    assert (action.content, talk.speaker) == ("Paris", None)


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


async def test_an_engine_that_aborts_again_and_again_is_not_waited_for_without_end(renderer, caplog, monkeypatch):
    """As if its weights never came. A line says so meanwhile; the turn's tokens are kept."""
    monkeypatch.setattr("agentrl.episode.engine_aborts._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("agentrl.episode.engine_aborts._warned_at", float("-inf"))
    talk = await opened(renderer, lambda input_ids: Generation((), (), "abort"))
    talk.aborted = lambda: False
    talk.options = replace(talk.options, engine_retry_s=0.2)
    with pytest.raises(FailedError, match=r"aborted \d+ requests for a turn within 0 s and sampled no token") as failed:
        await talk.sample()
    assert (failed.value.failure.kind, failed.value.failure.boundary) == ("engine", "engine")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the host has not asked for it: they are repeated for 0.2 s" in warning


async def test_aborts_between_which_tokens_come_are_waited_for(renderer, monkeypatch):
    monkeypatch.setattr("agentrl.episode.engine_aborts._FIRST_PAUSE_S", 0.001)
    whole = renderer.encode({"role": "assistant", "content": "It is the city of Paris, in France."})
    sent = []

    def one_by_one(input_ids):
        sent.append(len(input_ids))
        at = sum(sent[k] < sent[k + 1] for k in range(len(sent) - 1))
        if len(sent) % 2:
            return Generation((), (), "abort")
        return Generation(whole[at : at + 1], [-0.5], "stop" if at + 1 == len(whole) else "abort")

    talk = await opened(renderer, one_by_one)
    talk.aborted = lambda: False
    talk.options = replace(talk.options, engine_retry_s=0.02)
    action, stop = await talk.sample()
    assert (action.content, stop) == ("It is the city of Paris, in France.", None)


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


class AllAtOnce(ScriptedEngine):
    """Answers with every token of a turn, as an engine does that samples several tokens in a step."""

    def _limit(self, reply, sampling_params):
        return reply


def _generation(renderer, text, finish_reason="stop", matched=None):
    tokens = renderer.turns.template.encode(text)
    return Generation(tokens, [-(1 + i) / 64 for i in range(len(tokens))], finish_reason, matched)


@pytest.mark.parametrize(
    ("finish_reason", "matched"), [("stop", "Then:"), ("stop", None), ("length", None), ("abort", None)]
)
async def test_tokens_behind_a_stop_string_are_no_part_of_the_turn(renderer, finish_reason, matched):
    late = _generation(renderer, "Paris. Then: and then more of it<|im_end|>", finish_reason, matched)
    talk = await opened(renderer, [])
    talk.engine = AllAtOnce([late, "Rome"], renderer)
    talk.aborted = lambda: False
    action, stop = await talk.sample(TurnOptions(stop=("it", "Then:")))
    assert (action.finish_reason, action.matched, stop) == ("stop", "Then:", None)
    assert renderer.decode(action.tokens).endswith("Then:")
    count = len(action.tokens)
    assert list(action.tokens) == list(late.tokens[:count])
    assert talk.trajectory.ledger.sampled == talk.trajectory.ledger.trained == count
    assert talk.discarded_tokens == len(late.tokens) - count
    assert talk.observe([{"role": "user", "content": "And of Italy?"}]) is None
    await talk.sample()
    assert talk.engine.requests[1] == talk.trajectory.tokens[: len(talk.engine.requests[1])]
    talk.trajectory.verify()


async def test_tokens_behind_a_stop_token_are_no_part_of_the_turn(renderer):
    late = _generation(renderer, "Paris<|im_end|>\n<|im_start|>user", "length")
    talk = await opened(renderer, [])
    talk.engine = AllAtOnce([late], renderer)
    action, stop = await talk.sample()
    assert (action.content, action.finish_reason, stop) == ("Paris", "stop", None)
    assert renderer.decode(action.tokens) == "Paris<|im_end|>"
    assert talk.discarded_tokens == len(late.tokens) - len(action.tokens)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
async def test_a_stop_string_that_an_abort_splits_ends_the_turn(renderer, count):
    whole = _generation(renderer, "The </answer> is more")
    first = Generation(whole.tokens[:count], whole.log_probs[:count], "abort")
    rest = Generation(whole.tokens[count:], whole.log_probs[count:], "stop")
    talk = await opened(renderer, [])
    talk.engine, talk.aborted = AllAtOnce([first, rest], renderer), lambda: False
    action, _ = await talk.sample(TurnOptions(stop=("</answer>",)))
    assert renderer.decode(action.tokens).startswith("The </answer>")
    assert "</answer>" not in renderer.decode(action.tokens[:-1])
    assert (action.finish_reason, action.matched) == ("stop", "</answer>")


async def test_ignored_stop_tokens_end_no_turn(renderer):
    whole = _generation(renderer, "Paris<|im_end|>and on", "length")
    talk = await opened(renderer, [])
    talk.options = EpisodeOptions(sampling_params={"ignore_eos": True})
    talk.engine = AllAtOnce([whole], renderer)
    action, _ = await talk.sample(TurnOptions(max_tokens=len(whole.tokens)))
    assert len(action.tokens) == len(whole.tokens)
