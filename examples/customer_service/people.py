"""The scripted customer, a player who serves the customer well, and a player who does nothing."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

from agentrl import Message, Task
from agentrl.chat.simulation import STOP
from agentrl.engine import Turn
from agentrl.testing import call


def customer(messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
    """A customer by rules: says the wish, gives the e-mail address, says yes to questions, and is content with answers.

    The customer's words depend on the messages alone, so an episode is the same each time.
    """
    instruction, asked = messages[0]["content"], messages[-1]["content"]
    if len(messages) == 2:
        wish = re.search(r"You want.*", instruction)
        return _as_oneself(wish[0] if wish else instruction)
    if "mail" in asked.lower() and "?" in asked:
        address = re.search(r"\S+@[\w.]+\w", instruction)
        return f"It is {address[0]}." if address else "I have none."
    return "Yes, please." if "?" in asked else STOP


def _as_oneself(text: str) -> str:
    """The customer's wish, changed to the first person."""
    words = {"You want": "I want", "you want": "I want", "you get": "I get", "your": "my"}
    return re.sub("|".join(words), lambda found: words[found[0]], text)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Serves the customer with the right actions."""
    yield "Gladly. What is your e-mail address?"
    yield call("find_customer", email=task.metadata["email"])
    order = re.search(r"W\d+", task.metadata["instruction"])
    assert order is not None
    yield call("get_order", order=order[0])
    for action in task.metadata["actions"]:
        yield f"I would do this for you: {action['name'].replace('_', ' ')}, order {order[0]}. Is that right?"
        yield call(action["name"], **action["arguments"])
    yield f"This is settled: {', '.join(task.metadata['outputs'])}."


def noop(task: Task) -> Generator[Turn, str, None]:
    """Writes something kind, and calls no tool."""
    yield "I am afraid that I cannot help you."
