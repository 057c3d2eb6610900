"""Episodes with fresh text and an engine in this process, to measure the work of agentrl alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl import Env, Limits, tool
from agentrl.engine.sglang.client import _body
from agentrl.engine.sglang.encoding import HistoryEncoder
from agentrl.episode.options import EpisodeOptions
from agentrl.episode.run import run_episode
from agentrl.render import Renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation, SamplingParams, Task

ROOT = Path(__file__).parents[1]
SAMPLED, OBSERVED = 155, 309
"""Tokens of a turn in whole episodes. SAMPLED: sampled tokens. OBSERVED: tokens of the tool's result."""


class FreshText:
    """Texts with new words for a tokenizer's cache: words of the documentation, of which two in five are changed."""

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        self._pick = random.Random(seed)
        texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
        self._words = [word for text in texts for word in text.split(" ") if word]
        sample = self.words(500)
        self._share = 500 / len(tokenizer.encode(sample, add_special_tokens=False))

    def words(self, count: int) -> str:
        return " ".join(self._word() for _ in range(max(1, count)))

    def tokens(self, count: int) -> str:
        """A text of about `count` tokens."""
        return self.words(round(count * self._share))

    def _word(self) -> str:
        pick, word = self._pick, self._pick.choice(self._words)
        if pick.random() > 0.4:
            return word
        cut = pick.randint(1, len(word))
        return word[:cut] + pick.choice(("", str(pick.randrange(1000)), pick.choice(self._words)[:3]))


class Script:
    """All texts of engine and tool. They are generated before the measurement."""

    def __init__(self, tokenizer: Any, turns: int) -> None:
        fresh = FreshText(tokenizer)
        self.observed = [fresh.tokens(OBSERVED) for _ in range(turns)]
        stop = tokenizer.eos_token
        self.sampled = [
            tokenizer.encode(self._turn(fresh.tokens(SAMPLED - 25)) + stop, add_special_tokens=False)
            for _ in range(turns)
        ]

    def _turn(self, said: str) -> str:
        said = said.replace("<", "(").replace('"', "'").replace("\\", "/").replace("\n", " ").replace("\t", " ")
        return f'{said}\n<tool_call>\n{{"name": "search", "arguments": {{"query": "{said[:40]}"}}}}\n</tool_call>'


class Search(Env):
    """An Env whose tool returns the next text for each call."""

    def __init__(self, script: Script) -> None:
        self.script = script

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return self.script.observed.pop()

    def score(self, trajectory: Trajectory) -> float:
        return 0.0


class InProcess:
    """An engine that returns the texts of the script, and encodes each request as the client of SGLang does.

    With `together`, the engine responds only when this many requests wait.
    """

    def __init__(self, script: Script, together: int = 0) -> None:
        self.script, self.together = script, together
        self.encoder, self.waiting = HistoryEncoder(max_tokens=1 << 40), list[asyncio.Future[None]]()

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        _body(self.encoder.encode(session_id, input_ids), {"sampling_params": sampling_params, "rid": rid})
        if self.together:
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            if len(self.waiting) == self.together:
                asyncio.get_running_loop().call_later(0.05, self.wake)
            await waiter
        else:
            await asyncio.sleep(0)
        tokens = self.script.sampled.pop()
        meta = {"id": rid, "completion_tokens": len(tokens), "prompt_tokens": len(input_ids), "e2e_latency": 1.0}
        return Generation(tokens, [-0.5] * len(tokens), "stop", tokens[-1], "1", 0, meta)

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.set_result(None)

    def forget(self, session_id: str) -> None:
        self.encoder.forget(session_id)

    async def abort(self, rid: str | None = None) -> None: ...

    async def context_length(self) -> int:
        return 1 << 20

    async def close(self) -> None: ...


async def play(
    renderer: Renderer, script: Script, episodes: int, turns: int, engine: InProcess | None = None
) -> list[Trajectory]:
    """Play whole episodes, all at the same time."""
    engine = engine or InProcess(script)
    options = EpisodeOptions(limits=Limits(turns=turns))
    runs = [
        run_episode(Search(script), Task(prompt="Which river?"), engine=engine, renderer=renderer, options=options)
        for _ in range(episodes)
    ]
    return await asyncio.gather(*runs)
