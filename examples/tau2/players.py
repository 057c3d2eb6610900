"""Scripts for tau2's tasks: a simulated user without a model, a player with the right calls, and a player without
calls."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from agentrl.engine import Turn
from agentrl.testing import call
from agentrl.types import Message, Task


def blunt(messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
    """A user who gives all facts at once, and accepts the first answer."""
    scenario = messages[0]["content"].rpartition("<scenario>")[2].partition("</scenario>")[0]
    return " ".join(scenario.split()) if len(messages) == 2 else "###STOP###"


def gold(task: Task) -> Generator[Turn, str, None]:
    """Makes the right calls in order, then gives the required information."""
    for action in task.metadata["actions"]:
        yield call(action["name"], **action["arguments"])
    yield f"It is done. {'; '.join(task.metadata['told'])}"


def noop(task: Task) -> Generator[Turn, str, None]:
    """Answers kindly, and calls no tool."""
    yield "I am afraid that I cannot help you."
