# ruff: noqa: ASYNC110 - what is waited for is in a thread
"""First prompts that sessions share: what each gets is what it would get alone."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from agentrl import Trajectory
from agentrl.chat.request import Call, RefusedError
from agentrl.errors import TemplateError
from agentrl.gateway.session import openings as module
from agentrl.gateway.session import sampling
from agentrl.gateway.session.openings import Opening, Openings, openings
from agentrl.gateway.session.sampling import Sampler
from agentrl.render.long_text import LONG
from agentrl.types import CheckCounts, Rendered
from tests.episode.pictures import A
from tests.gateway.client import ASK, FIND, SYSTEM, Entry, Talk, results, told

LONG_ASK = Entry("user", "Capital of France? " * (LONG // 10))
OTHER = {"type": "function", "function": {"name": "other", "description": "Else.", "parameters": {"type": "object"}}}
CALLED = Entry("assistant", "Let me look.", "Hm.", (Call("c1", "find", {"what": "x", "more": [1, None]}),))
FIRST_REQUESTS = {
    "plain": ([SYSTEM, ASK], {}),
    "no tools": ([SYSTEM, ASK], {"tools": ()}),
    "other tools": ([SYSTEM, ASK], {"tools": (FIND, OTHER)}),
    "spaces around": ([SYSTEM, Entry("user", "  Capital of France?\n")], {}),
    "joined": ([SYSTEM, ASK, Entry("user", "Now.", joined=True)], {}),
    "not joined": ([SYSTEM, ASK, Entry("user", "Now.")], {}),
    "developer": ([Entry("developer", "You find things."), ASK], {}),
    "later system": ([SYSTEM, ASK, Entry("system", "Be brief.")], {}),
    "history": ([SYSTEM, ASK, CALLED, Entry("tool", "It is Paris.", call_id="c1"), ASK], {}),
    "history with a thought": ([SYSTEM, ASK, replace(CALLED, reasoning="Hm!"), ASK], {}),
    "to be continued": ([SYSTEM, ASK, Entry("assistant", "It is")], {"continued": True}),
    "not to be continued": ([SYSTEM, ASK, Entry("assistant", "It is")], {}),
    "deferred": ([SYSTEM, Entry("tool", "x", call_id="c", loads=("other",))], {"deferred": {"other": OTHER}}),
    "deferred otherwise": ([SYSTEM, Entry("tool", "x", call_id="c", loads=("other",))], {"deferred": {"other": FIND}}),
    "long": ([SYSTEM, LONG_ASK], {}),
}


@pytest.fixture
def written(monkeypatch):
    """The prompts that are written by a template, as they are written."""
    seen, write = list[str](), Sampler.write

    def counting(self, writer, prompt, request):
        seen.append(prompt.entries[-1].text)
        return write(self, writer, prompt, request)

    monkeypatch.setattr(Sampler, "write", counting)
    return seen


def alone(monkeypatch):
    monkeypatch.setattr(sampling, "opening_key", lambda *_: None)


async def played(renderer, entries, given):
    """A session of two turns, and the JSON of its trajectory."""
    talk = Talk(renderer, lambda ids: f"reply {sum(ids)}")
    talk.session.tree.tag = "g00000000"
    talk.session.log.lines.clear()
    first = await talk.says(*entries, **given)
    await talk.says(*entries, told(first), *results(first), Entry("user", "And of Spain?"), **given)
    data = talk.end().to_json()
    return without(data, "generate_s", "at", "time")


def without(value, *names):
    if isinstance(value, dict):
        return {name: without(one, *names) for name, one in value.items() if name not in names}
    return [without(one, *names) for one in value] if isinstance(value, list) else value


async def test_every_first_prompt_is_the_one_that_it_would_be_alone(renderer, monkeypatch, written):
    shared = [await played(renderer, *FIRST_REQUESTS[name]) for name in [*FIRST_REQUESTS] * 2]
    count, kinds = len(written), len(FIRST_REQUESTS)
    alone(monkeypatch)
    apart = [await played(renderer, *request) for request in FIRST_REQUESTS.values()]
    assert shared[:kinds] == shared[kinds:] == apart
    assert count == kinds + 2 * kinds, "first prompts once, second ones each time"


async def test_sessions_that_begin_together_wait_for_one_render(renderer, written):
    talks = [Talk(renderer, ["Paris"]) for _ in range(12)]
    replies = await asyncio.gather(*(talk.says(SYSTEM, LONG_ASK) for talk in talks))
    assert {reply.content for reply in replies} == {"Paris"}
    assert len(written) == 1
    prompts = [talk.session.tree.prompts[0] for talk in talks]
    assert len({id(prompt.rendered.tokens) for prompt in prompts}) == 1, "held in memory once"
    assert len({id(prompt.entries) for prompt in prompts}) == len({id(prompt.head.tools) for prompt in prompts}) == 1
    made = [talk.end() for talk in talks]
    assert all(trajectory.ledger.trained == trajectory.ledger.sampled for trajectory in made)
    made[0].messages[0]["content"] = "changed by a reward function"
    assert talks[1].session.tree.prompts[0].messages[0]["content"] == SYSTEM.text


@pytest.fixture
def held(monkeypatch):
    """Writing waits for an event."""
    go, write = threading.Event(), Sampler.write

    def waiting(self, *given):
        assert go.wait(10)
        return write(self, *given)

    monkeypatch.setattr(Sampler, "write", waiting)
    yield go
    go.set()


async def rendering():
    while not openings().rendering:
        await asyncio.sleep(0)


async def test_a_session_that_ends_takes_the_prompt_away_from_nobody(renderer, held, written):
    talks = [Talk(renderer, ["Paris"]) for _ in range(4)]
    asking = [talk.ask(SYSTEM, LONG_ASK) for talk in talks]
    await rendering()
    talks[0].session.close("killed")
    with pytest.raises(RefusedError, match="killed"):
        await asking[0].replies()
    held.set()
    for talk, exchange in list(zip(talks, asking, strict=True))[1:]:
        assert (await talk.replies(exchange))[0].content == "Paris"
    assert len(written) == 1
    assert not openings().rendering


async def test_when_all_have_gone_the_prompt_is_kept_for_the_next(renderer, held, written):
    talks = [Talk(renderer, ["Paris"]) for _ in range(3)]
    asking = [talk.ask(SYSTEM, LONG_ASK) for talk in talks]
    await rendering()
    for talk, exchange in zip(talks, asking, strict=True):
        talk.session.close("killed")
        with pytest.raises(RefusedError):
            await exchange.replies()
    held.set()
    assert (await Talk(renderer, ["Paris"]).says(SYSTEM, LONG_ASK)).content == "Paris"
    assert len(written) == 1


async def test_a_failure_is_everybodys_and_not_remembered(renderer, monkeypatch):
    failures = [TemplateError("it loses words"), TemplateError("it loses words")]
    write = Sampler.write

    def failing(self, *given):
        if failures:
            raise failures.pop()
        return write(self, *given)

    monkeypatch.setattr(Sampler, "write", failing)
    talks = [Talk(renderer, ["Paris"]) for _ in range(3)]
    asking = [talk.ask(SYSTEM, LONG_ASK) for talk in talks]
    for exchange in asking:
        with pytest.raises(RefusedError, match="it loses words"):
            await exchange.replies()
    assert len(failures) == 1
    with pytest.raises(RefusedError, match="it loses words"):
        await talks[0].says(SYSTEM, LONG_ASK, digest="again")
    assert (await talks[1].says(SYSTEM, LONG_ASK, digest="again")).content == "Paris"


async def test_comparisons_are_counted_once(renderer, monkeypatch):
    write = Sampler.write

    def compared(self, *given):
        rendered, messages = write(self, *given)
        return replace(rendered, checks=CheckCounts(bridges_checked=3)), messages

    monkeypatch.setattr(Sampler, "write", compared)
    talks = [Talk(renderer, ["Paris"]) for _ in range(3)]
    for talk in talks:
        await talk.says(SYSTEM, ASK)
    assert sum(talk.end().checks.bridges_checked for talk in talks) == 3


async def test_what_a_prompt_depends_on_is_in_its_key(renderer, monkeypatch, written):
    def key(entries=(SYSTEM, ASK), wire="chat", using=renderer, **given):
        request = module.ChatRequest(wire=wire, entries=tuple(entries), **given)
        return module.opening_key(using, request, request.entries)

    assert key() == key()
    others = [key(*given, **more) for given, more in [((entries,), more) for entries, more in FIRST_REQUESTS.values()]]
    known = {"tools": ()}
    assert len({*others}) >= len(FIRST_REQUESTS) - 2, "tools are the renderer's"
    assert key(using=renderer.bind([FIND])) != key(**known)
    picture = Entry.of("user", ["See.", A])
    assert key([SYSTEM, picture]) is None
    monkeypatch.setattr(time, "strftime", lambda _: "2031-01-01")
    assert key() != others[0], "templates may write the date"


async def test_memory_is_bounded():
    rendered = Rendered([1] * 100, ())

    def opening(text):
        async def make():
            return Opening(None, (Entry("user", text),), (), rendered, [])

        return make

    kept = Openings(most=1000)
    for name in ("a", "b", "c"):
        await kept.get(name.encode(), opening(name * 10))
    assert list(kept.prompts) == [b"b", b"c"]
    await kept.get(b"b", opening("never made"))
    await kept.get(b"d", opening("d" * 10))
    assert list(kept.prompts) == [b"b", b"d"]
    await kept.get(b"e", opening("e" * 1000))
    assert list(kept.prompts) == [b"b", b"d"], "what is too large is not kept"
    assert kept.size == 824
    assert not kept.rendering


async def test_each_loop_has_its_own():
    here = openings()
    assert here is openings()
    assert await asyncio.to_thread(lambda: asyncio.run(_there())) is not here


async def _there():
    return openings()


async def test_a_trajectory_written_twice_from_a_shared_prompt_is_the_same(renderer):
    talks = [Talk(renderer, ["Paris"]) for _ in range(2)]
    for talk in talks:
        await talk.says(SYSTEM, LONG_ASK)
    talks[0].session.write(one := Trajectory(session_id="s"))
    one.segments[0].ids.append(7)  # a host may change what it got
    assert talks[1].end().segments[0].ids[-1] != 7
