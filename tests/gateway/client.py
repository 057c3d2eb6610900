"""A client as the gateway's sessions meet one: it keeps its history as entries, and tells replies in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agentrl import EpisodeOptions, Limits, SamplingParams, Trajectory
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, ChatRequest, Entry, Exchange, RefusedError, Reply
from agentrl.engine import Generation, ScriptedEngine
from agentrl.gateway.session.session import Session

FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}
SYSTEM, ASK = Entry("system", "You find things."), Entry("user", "Capital of France?")


class Recorder(ScriptedEngine):
    """A scripted engine that keeps what it returned beside what it was sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers: list[tuple[list[int], list[int]]] = []
        self.session_ids: list[str] = []
        self.params: list[SamplingParams] = []
        self.gate = asyncio.Event()
        """While it is not set, requests wait."""
        self.gate.set()
        self._cut: int | None = None

    def aborts(self, tokens: int) -> None:
        """End the next generation after some tokens, as an abort does."""
        self._cut = tokens

    def unaborted(self) -> None:
        self._cut = None

    async def generate(self, input_ids, sampling_params, *, session_id="", rid="") -> Generation:
        self.params.append(sampling_params)
        await self.gate.wait()
        found = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        if (cut := self._cut) is not None:
            self._cut = None
            found = Generation(found.tokens[:cut], found.log_probs[:cut], "abort")
        self.answers.append((list(input_ids), list(found.tokens)))
        self.session_ids.append(session_id)
        return found


class Talk:
    """One session with an engine, and what its client does."""

    def __init__(
        self,
        renderer: Any,
        script: Any,
        *,
        options: SessionOptions | None = None,
        limits: Limits | None = None,
        aborted: Callable[[], bool] | None = None,
        play: bool = True,
        **engine: Any,
    ) -> None:
        self.renderer, self.aborted = renderer, aborted
        self.engine = Recorder(script, renderer, **engine)
        self.session = Session("key", options=options)
        self.episode = EpisodeOptions(limits=limits or Limits(turns=1000), sampling_params={"sampling_seed": 7})
        if play:
            self.play()

    def play(self) -> None:
        self.session.play(self.engine, self.renderer, self.episode, self.aborted, "s")

    def ask(self, *entries: Entry, **given: Any) -> Exchange:
        given = {"wire": "chat", "tools": (FIND,), **given}
        return self.session.ask(ChatRequest(entries=tuple(entries), **given))

    async def says(self, *entries: Entry, **given: Any) -> Reply:
        """The reply to these entries, which the client gets."""
        exchange = self.ask(*entries, **given)
        (reply,) = await self.replies(exchange)
        exchange.delivered()
        return reply

    async def replies(self, exchange: Exchange) -> Sequence[Reply]:
        """The replies. A bug is raised as it is."""
        try:
            return await exchange.replies()
        except RefusedError:
            if self.session.error is not None:
                raise self.session.error from None
            raise

    def end(self) -> Trajectory:
        """Close the session and check all that holds of every trajectory of one."""
        self.session.close("done")
        trajectory = Trajectory(session_id="s")
        self.session.write(trajectory)
        check(trajectory, self.engine)
        return trajectory

    def events(self, *kinds: str) -> list[str]:
        return [line["event"] for line in self.session.log.lines if line["event"] in kinds]

    @property
    def audits(self) -> list[str]:
        return [line["kind"] for line in self.session.log.lines if line["event"] == "audit"]


def check(trajectory: Trajectory, engine: Recorder) -> None:
    """Each sampled token stands in one segment's response, behind just what the engine was sent for it."""
    trajectory.verify()
    assert trajectory.prefix_breaks == 0
    answers = sorted(engine.answers)
    found = []
    for segment in trajectory.segments:
        ends = 0
        for i in range(len(segment.turns)):
            spans = [span for span in segment.spans if span.turn == i and span.kind == "sampled"]
            start = segment.prompt_length + (spans[0].start if spans else ends)
            end = segment.prompt_length + (spans[-1].stop if spans else ends)
            found.append((segment.tokens[:start], segment.tokens[start:end]))
            ends = end - segment.prompt_length
        assert sum(len(segment.tokens_of(i)) for i in range(len(segment.turns))) == segment.ledger.sampled
    assert joined(answers) == joined(sorted(found))
    again = Trajectory.from_json(trajectory.to_json())
    assert again.to_json() == trajectory.to_json()


def joined(answers: Sequence[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Generations with those that went on with the same turn."""
    made: list[tuple[list[int], list[int]]] = []
    for sent, got in answers:
        open_turn = next((i for i, (s, g) in enumerate(made) if s + g == sent), None)
        if open_turn is None:
            made.append((sent, got))
        else:
            made[open_turn] = (made[open_turn][0], made[open_turn][1] + got)
    return sorted(made)


def told(reply: Reply, **changes: Any) -> Entry:
    """A reply as a careful client tells it back."""
    calls = tuple(Call(call.id, call.name, call.arguments) for call in reply.calls)
    return replace(Entry("assistant", reply.content, reply.reasoning, calls, (reply.id, reply.receipt)), **changes)


def results(reply: Reply, *texts: str) -> list[Entry]:
    return [Entry("tool", text, call_id=call.id) for call, text in zip(reply.calls, texts, strict=True)]
