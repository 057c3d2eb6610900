"""A small environment of verifiers: a question, a second question, and a reward. Its harness plays in process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima"}


class Question(vf.TaskData):
    capital: str


class Capital(vf.Task[Question, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: Any) -> float:
        return float(trace.messages[-1].content.strip() == self.data.capital)

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return float(len(trace.messages[-1].content) < 8)


class Capitals(vf.Taskset[Capital, vf.TasksetConfig]):
    def load(self) -> Iterator[Capital]:
        for country, capital in CAPITALS.items():
            prompt = f"What is the capital of {country}?"
            yield Capital(Question(id=country, name=country, prompt=prompt, capital=capital), self.config.task)


class TwoQuestions(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> Any:
        messages: list[Any] = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            first = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages += [first.choices[0].message, {"role": "user", "content": "Are you sure? Say it again."}]
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(0, "", "")


__all__ = ["Capitals", "TwoQuestions"]
