"""The environment: Search-R1's, with your corpus and questions."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl import Task
from agentrl_envs.search_r1 import SearchR1, SearchR1Config

HERE = Path(__file__).parent


class MyEnvConfig(SearchR1Config):
    """Search-R1's settings. A retriever is a corpus, or the URL of a server such as `agentrl retriever`."""

    retriever: str = str(HERE / "corpus.jsonl")
    topk: int = 1


def read_questions(split: str) -> Sequence[dict[str, Any]]:
    """Every fourth question is held out."""
    rows = [json.loads(line) for line in (HERE / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for number, row in enumerate(rows) if (number % 4 == 0) == (split == "eval")]


class MyEnv(SearchR1):
    """Answer a question by searching, in Search-R1's tags."""

    config: MyEnvConfig

    @classmethod
    def tasks(cls, config: MyEnvConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        """The question alone: `tiny` cannot follow the paper's prompt. For a real model: agentrl data search-r1."""
        for row in read_questions(split):
            label = {"ground_truth": {"target": row["golden_answers"]}}
            yield Task(prompt=row["question"], label=label, metadata={"about": row["about"]})
