"""Scripted players that search. They know the right answers, and give an answer only after a passage contains it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from agentrl import Raw, Task
from agentrl._util.texts import text_of
from agentrl.engine.scripted import Turn
from agentrl.rewards.answers import targets
from agentrl.rewards.text import is_within
from agentrl.testing import call

_SEARCHES = 3
"""The most searches. With the answer, an episode has the paper's four turns."""


def searcher(task: Task) -> Generator[Turn, str, None]:
    """Searches in tags, then answers if a passage holds a right answer, else with an empty answer."""
    return _search(task, lambda query: f"<think> I look it up. </think> <search> {query} </search>")


def tool_searcher(task: Task) -> Generator[Turn, str, None]:
    """The same player as `searcher`, with tool calls."""
    return _search(task, lambda query: call("search", query=query))


def noop(task: Task) -> Generator[Turn, str, None]:
    """Neither searches nor knows an answer."""
    yield "<think> I do not know. </think> <answer> unknown </answer>"


def _search(task: Task, spelled: Callable[[str], Turn]) -> Generator[Turn, str, None]:
    rights = targets(task.label)
    for query in queries(task)[:_SEARCHES]:
        passages = (yield spelled(query)).replace("</information>", "")
        answers = [right for right in rights if is_within(passages, [right])]
        if answers:
            yield f"<think> I have read it. </think> <answer> {answers[0]} </answer>"
            return
    yield "<think> I found nothing. </think> <answer> </answer>"


def queries(task: Task) -> Sequence[str]:
    """The searches in the row's `extra_info`, else the question itself."""
    listed = task.metadata.get("extra_info", {}).get("searches")
    return listed or [question_of(task)]


def question_of(task: Task) -> str:
    """The question in a prompt with the paper's words; any other prompt as a whole."""
    prompt = task.prompt
    if isinstance(prompt, Raw):
        return _behind_label(prompt.text)
    return _behind_label(prompt if isinstance(prompt, str) else text_of(prompt[-1]["content"]))


def _behind_label(text: str) -> str:
    return text.rpartition("Question: ")[2].strip().partition("\n")[0]
