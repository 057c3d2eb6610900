"""The scripted user: needs no model, no key and no network."""

from collections.abc import Sequence

from agentrl import Message, ToolSpec


def reply(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
    """What the user says. The first message tells what the user wants, the last one is what the agent said."""
    wish, said = str(messages[0]["content"]), str(messages[-1]["content"])
    day = wish.partition(" on ")[2].partition(".")[0]
    return f"On {day} please." if "day" in said else "I do not understand."
