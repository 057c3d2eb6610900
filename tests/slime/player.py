"""The model of these tests, as an engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.testing import call


class Player(ScriptedEngine):
    """Looks up the country of the question, then says what it was told. Stateless, so it plays any number at once."""

    def __init__(self, renderer: Any, *, seconds: float = 0.0, context_length: int = 4096) -> None:
        super().__init__(self._turn, renderer, seconds=seconds, context_length=context_length)
        self.decode, self.encode = renderer.decode, renderer.encode
        self.sessions: list[str] = []
        self.params: list[dict[str, Any]] = []

    def _turn(self, input_ids: Sequence[int]) -> Generation:
        """What it says, or the rest of it where an abort has cut the turn."""
        said = self._say(input_ids)
        tokens = self.encode({"role": "assistant", "content": said} if isinstance(said, str) else said)
        begun = next((k for k in range(len(tokens) - 1, 0, -1) if list(input_ids[-k:]) == list(tokens[:k])), 0)
        return Generation(tokens[begun:], [scripted_log_prob(token) for token in tokens[begun:]], "stop")

    def _say(self, input_ids: Sequence[int]) -> Any:
        text = self.decode(input_ids)
        asked = text[text.rindex("capital of") :]
        if told := re.search(r"(Paris|Madrid|unknown)", asked):
            return told[1]
        return call("capital", country=re.match(r"capital of (\w+)", asked)[1])

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        self.sessions.append(session_id)
        self.params.append(dict(sampling_params))
        return await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
