"""Two episodes whose turns alternate: each must get the same observations and rewards as alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from agentrl.check.playing import EnvUnderTest, PlayedEpisode, Speak, play
from agentrl.check.repeating import difference, first_change, global_random
from agentrl.engine.base import EngineWrapper, RequestFields, ask
from agentrl.types import Generation, SamplingParams, Task

_CHECK = "state"
_PATIENCE_S = 2.0


async def interleaved(subject: EnvUnderTest, tasks: Sequence[Task], speaks: Sequence[Speak]) -> str:
    """Play two tasks (or the same task twice) alone and alternating, and compare. Returns why the
    comparison says nothing, or an empty text."""
    alone = [await _alone(subject, task, speak) for task, speak in zip(tasks, speaks, strict=True)]
    rounds = _Rounds(len(tasks))
    both = await asyncio.gather(
        *(
            _taking_part(subject, task, speak, rounds, i)
            for i, (task, speak) in enumerate(zip(tasks, speaks, strict=True))
        )
    )
    if not subject.steady or subject.report.has(_CHECK):
        return "the answers differ from play to play anyway" if not subject.steady else ""
    differing = next((d for a, b in zip(alone, both, strict=True) if (d := difference(a.answers(), b.answers()))), "")
    if differing:
        culprit, _ = await first_change(subject, tasks, speaks[0])
        subject.report.error(
            _CHECK,
            culprit.place or subject.author.of_member("step", "reset"),
            f"an episode gets different answers when another one runs at the same time: {differing}",
            "keep what belongs to an episode on self, not on the class, the module or self.shared",
        )
    return "" if rounds.strict else "one episode had to wait for the other, so they could not alternate"


async def _alone(subject: EnvUnderTest, task: Task, speak: Speak) -> PlayedEpisode:
    with global_random(7):
        return await play(subject, task, speak)


async def _taking_part(subject: EnvUnderTest, task: Task, speak: Speak, rounds: _Rounds, number: int) -> PlayedEpisode:
    try:
        return await play(subject, task, speak, around=lambda engine: _PacedEngine(engine, rounds, number))
    finally:
        rounds.leave(number)


class _Rounds:
    """Lets episodes take their turns alternately."""

    def __init__(self, count: int) -> None:
        self._active, self._holder = list(range(count)), 0
        self._events = [asyncio.Event() for _ in range(count)]
        self.strict = True

    async def take(self, number: int) -> None:
        """Let the next episode take a turn, and wait until episode `number` may take a turn again."""
        if self._holder == number:
            self._give(self._after(number))
        while self.strict and self._holder != number:
            self._events[number].clear()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._events[number].wait()
            except TimeoutError:
                self.strict = False
                for event in self._events:
                    event.set()

    def leave(self, number: int) -> None:
        following = self._after(number)
        self._active.remove(number)
        if self._holder == number and self._active:
            self._give(following)

    def _after(self, number: int) -> int:
        index = self._active.index(number)
        return self._active[(index + 1) % len(self._active)]

    def _give(self, number: int) -> None:
        self._holder = number
        self._events[number].set()


@dataclass(frozen=True, slots=True, eq=False)
class _PacedEngine(EngineWrapper):
    """An engine that waits until its episode may take a turn."""

    rounds: _Rounds
    number: int

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        await self.rounds.take(self.number)
        return await ask(self.engine, input_ids, sampling_params, request)
