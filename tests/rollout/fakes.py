"""An engine whose answers and failures a test decides."""

import asyncio

from agentrl import Generation
from agentrl.errors import EngineError


class Fake:
    """Says "yes" after a pause that differs by request, and remembers what it was asked."""

    def __init__(self, renderer, *, fails=(), pause=0.001):
        self.tokens = renderer.encode({"role": "assistant", "content": "yes"})
        self.asked = {}
        self.running = self.most = 0
        self.fails, self.pause = set(fails), pause

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        self.asked[session_id] = dict(sampling_params)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.pause * (len(self.asked) % 5))
        finally:
            self.running -= 1
        if session_id in self.fails:
            raise EngineError("gone")
        return Generation(self.tokens, [-0.5] * len(self.tokens), "stop", weight_version="0")

    async def abort(self, rid=None):
        raise AssertionError

    async def context_length(self):
        return 1000

    async def close(self):
        raise AssertionError
