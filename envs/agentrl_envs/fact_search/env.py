"""The environment: a search tool, and a reward for facts that the model looked up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

from agentrl import Env, Task, Trajectory, tool
from agentrl_envs.fact_search.facts import Index, load_facts
from agentrl_envs.fact_search.tasks import questions

ANSWER = "Answer: "


class FactSearchConfig(BaseModel, extra="forbid"):
    passages: int = Field(default=1, ge=1)
    """How many passages a search returns."""


class FactSearch(Env):
    """Answer a question about a city or a country with `Answer: NAME`, after looking it up."""

    config: FactSearchConfig
    shared: Index
    deterministic = True

    @classmethod
    def tasks(cls, config: FactSearchConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        return questions(split)

    @classmethod
    def share(cls, config: FactSearchConfig) -> Index:
        return Index(load_facts().passages())

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return "\n".join(self.shared.search(query, self.config.passages)) or "No result."

    async def score(self, trajectory: Trajectory) -> float:
        """1.0 for the right answer, if a search of this episode returned it; 0.0 otherwise."""
        read = "\n".join(m["content"] for m in trajectory.messages if m["role"] == "tool")
        match = re.search(rf"\b{re.escape(self.task.label)}\b", read)
        return float(match is not None and trajectory.answer == f"{ANSWER}{self.task.label}")
