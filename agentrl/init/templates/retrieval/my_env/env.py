"""The environment: questions that a search answers."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl import Env, Task, Trajectory, tool

HERE = Path(__file__).parent


class Corpus:
    """A few passages in memory. For a large corpus see agentrl_envs.search_r1.retrieval: BM25, or a server."""

    def __init__(self, file: Path) -> None:
        self.passages: list[str] = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]

    def search(self, query: str) -> str | None:
        """The passage that shares most words with the query; None if none shares any."""
        asked = words(query)
        best = max(self.passages, key=lambda passage: len(asked & words(passage)))
        return best if asked & words(best) else None


def words(text: str) -> set[str]:
    return set(text.lower().replace(".", "").replace("?", "").split())


def read_questions(split: str) -> Sequence[dict[str, str]]:
    """Every fourth question is held out."""
    rows = [json.loads(line) for line in (HERE / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for number, row in enumerate(rows) if (number % 4 == 0) == (split == "eval")]


class MyEnv(Env):
    """Answer a question about where things are. Only the search knows."""

    shared: Corpus
    deterministic = True  # the same search always finds the same

    @classmethod
    def share(cls, config: Any) -> Corpus:
        """Made once, for all episodes."""
        return Corpus(HERE / "corpus.jsonl")

    @classmethod
    def tasks(cls, config: Any, split: Literal["train", "eval"]) -> Iterable[Task]:
        for row in read_questions(split):
            yield Task(prompt=row["question"], label=row["answer"], metadata={"about": row["about"]})

    @tool
    async def search(self, query: str) -> str:
        """Search for a passage."""
        return self.shared.search(query) or "No result."

    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.answer == self.task.label)
