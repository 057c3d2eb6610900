"""The scripted user: needs no model, no key and no network."""

import re
from collections.abc import Sequence

from agentrl import Message, ToolSpec


def reply(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
    """What the user says. The first message tells what the user wants, the last one is what the agent said."""
    wish, said = str(messages[0]["content"]), str(messages[-1]["content"])
    day = re.search(r"You want a \w+ on (\w+)\.", wish)
    return f"On {day[1]} please." if day and "day" in said else "I do not understand."
