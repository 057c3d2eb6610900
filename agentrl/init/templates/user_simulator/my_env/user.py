"""The scripted user: needs no model, no key and no network."""

from collections.abc import Sequence

from agentrl import Message, ToolSpec


def reply(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
    """The user's next message. The first message is from the environment, the last one is the agent's."""
    day, said = messages[0]["facts"]["day"], str(messages[-1]["content"])
    return f"On {day} please." if "day" in said else "I do not understand."
