"""The scripted user: needs no model, no key and no network."""

from collections.abc import Sequence

from agentrl import Message, ToolSpec


def reply(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
    """What the user says. The first message holds what the environment knows, the last one what the agent said."""
    day, said = messages[0]["facts"]["day"], str(messages[-1]["content"])
    return f"On {day} please." if "day" in said else "I do not understand."
