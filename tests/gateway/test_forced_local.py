"""What a client demands of LocalEngine, with random weights that would never do it by themselves."""

from __future__ import annotations

import asyncio
import json
import re
import sys

import pytest

from tests.engine.inside import worker_of

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
pytest.importorskip("xgrammar", reason="grammars need the package xgrammar")

from agentrl.chat.request import ChatRequest, Entry, Forced, RefusedError  # noqa: E402
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.pausable import PausableEngine  # noqa: E402
from agentrl.episode.options import EpisodeOptions  # noqa: E402
from agentrl.gateway.session.session import Session  # noqa: E402
from agentrl.models import tiny_model, tiny_tokenizer  # noqa: E402
from agentrl.trajectory.trajectory import Trajectory, total_ledger  # noqa: E402
from agentrl.types import Limits  # noqa: E402

PICK = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"], "additionalProperties": False}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": PICK}} for name in ("find", "look"))
CALL = Forced(("find", "look"))


@pytest.fixture
async def engine():
    engine = LocalEngine(tiny_model(), tiny_tokenizer())
    yield engine
    await engine.close()


def playing(engine, renderer, *, aborted=None, tokens=120):
    session = Session("key")
    limits = Limits(turns=20, max_tokens_per_turn=tokens)
    options = EpisodeOptions(limits=limits, sampling_params={"sampling_seed": 5})
    session.play(engine, renderer, options, aborted, "s")
    return session


async def reply_to(session, text, forced=None):
    exchange = session.ask(ChatRequest(wire="chat", entries=(Entry("user", text),), tools=TOOLS, forced=forced))
    (reply,) = await exchange.replies()
    exchange.delivered()
    return reply


def written(session):
    session.close("done")
    session.write(trajectory := Trajectory())
    trajectory.verify()
    return total_ledger(trajectory.segments)


@pytest.mark.parametrize(
    ("forced", "names"),
    [
        (CALL, {"find", "look"}),
        (Forced(("look",), parallel=False), {"look"}),
        (Forced((), PICK), None),
        (Forced(("find",), PICK), {"find"}),
    ],
    ids=["required", "named", "response_format", "either"],
)
async def test_a_session_gets_what_its_client_demands(engine, renderer, forced, names):
    session = playing(engine, renderer)
    replies = await asyncio.gather(*(reply_to(session, f"Question {n}.", forced) for n in range(6)))
    whole = [reply for reply in replies if reply.stop != "length"]  # random weights like white space
    assert whole
    for reply in whole:
        if reply.calls:
            assert {call.name for call in reply.calls} <= names
            assert all(call.arguments["x"] in ("a", "b") for call in reply.calls)
            assert len(reply.calls) == 1 or forced.parallel
        else:
            assert forced.schema is not None
            assert json.loads(reply.content)["x"] in ("a", "b")
    ledger = written(session)
    assert set(ledger.masked) == {"constrained"}
    assert ledger.sampled == ledger.trained + ledger.masked["constrained"]


async def test_a_turn_that_new_weights_interrupt_begins_again(renderer):
    """Its tokens so far are in no turn: the grammar would begin in the middle of the form."""
    model = tiny_model()
    engine = PausableEngine(LocalEngine(model, tiny_tokenizer()))
    session = playing(engine, renderer, aborted=lambda: False)
    asked = [asyncio.ensure_future(reply_to(session, f"Question {n}.", CALL)) for n in range(3)]
    async with asyncio.timeout(20):
        while not any(len(row.log_probs) > 2 for row in worker_of(engine.engine).batch.requests):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await engine.update(model, "1")
    replies = await asyncio.gather(*asked)
    assert session._sampler.discarded_tokens > 2
    assert all(call.name in CALL.names for reply in replies if reply.stop != "length" for call in reply.calls)
    assert set(written(session).masked) == {"constrained"}
    await engine.close()


async def test_what_the_engine_refuses_ends_no_session(engine, renderer, monkeypatch):
    session = playing(engine, renderer, tokens=8)
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(RefusedError, match=r"the engine refuses this form: .*pip install 'agentrl-sdk\[grammar\]'"):
        await reply_to(session, "Go.", CALL)
    monkeypatch.undo()
    wrong = Forced((), {"type": "object", "properties": {"x": {"type": "colour"}}})
    with pytest.raises(RefusedError, match=r'the engine refuses this form: .*Unsupported type "colour"') as refused:
        await reply_to(session, "Go.", wrong)
    assert refused.value.status == 400
    assert (await reply_to(session, "Go on.")).usage.sampled > 0
    session.close("done")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"type": "regex", "pattern": "[0-9]{3}"}, r"[0-9]{3}"),
        ({"type": "or", "elements": [{"type": "const_string", "value": value} for value in ("yes", "no")]}, "yes|no"),
        ({"type": "grammar", "grammar": 'root ::= "a" [b-c] "d"'}, "a[bc]d"),
    ],
    ids=["regex", "choice", "grammar"],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_the_servers_own_forms(engine, renderer, form, words, begun):
    session = playing(engine, renderer)
    entries = (Entry("user", "Say it."), *([Entry("assistant", "It is ")] if begun else []))
    request = ChatRequest(wire="chat", entries=entries, forced=Forced((), text=form), continued=begun)
    (reply,) = await session.ask(request).replies()
    assert (re.fullmatch(words, reply.content) is not None, reply.stop) == (True, "end")
    assert reply.reasoning is None
