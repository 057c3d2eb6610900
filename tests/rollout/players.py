"""A player under test."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from agentrl import Generation
from agentrl.engine import ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob


class Sampled(ScriptedEngine):
    """Samples each token by the sampling seed and its position, after a while that neither decides."""

    def __init__(self, renderer, seconds=0.0):
        super().__init__(lambda ids: "unused", renderer, seconds=seconds)
        self.clock, self.in_flight, self.most = random.Random(1), 0, 0
        self.handed_out: Counter[tuple[int, int]] = Counter()
        """How often a token was, by sampling seed and position."""

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            for _ in range(self.clock.randrange(5)):
                await asyncio.sleep(0)
            said = self._sample(sampling_params["sampling_seed"], len(input_ids))
            said = await self._play(self._limit(said, sampling_params), rid)
            places = range(len(input_ids), len(input_ids) + len(said.tokens))
            self.handed_out.update((sampling_params["sampling_seed"], place) for place in places)
            return said
        finally:
            self.in_flight -= 1

    def _sample(self, seed, position):
        *digits, stop = self._renderer.encode({"role": "assistant", "content": "0123456789"})
        tokens = []
        while not tokens or tokens[-1] != stop:
            draw = random.Random(seed + 7919 * (position + len(tokens)))
            tokens.append(stop if draw.random() < 0.1 else draw.choice(digits))
        return Generation(tokens, [scripted_log_prob(token) for token in tokens], "stop")


def said(drawn):
    return {
        (group.number, i): member.tokens for group in drawn.pending for i, member in enumerate(group.members)
    }  # fmt: skip


async def steps(drawer, count):
    """The tokens of the groups of some steps."""
    found = {}
    drawer.begin(0, 0)
    for step in range(1, count + 1):
        drawn = await drawer.draw(step)
        found |= said(drawn)
        drawer.buffer.trained(step, drawn.pending)
        drawer.loop.advance(step)
    return found
