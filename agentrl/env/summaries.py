"""The request for a summary near the end of the context, and the prompt that follows the summary."""

from __future__ import annotations

from typing import Any

from agentrl._util.texts import text_of
from agentrl.image import has_image
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Message

REQUEST = (
    "The conversation is too long to go on. Write a summary now: the results so far, and what is left to do. "
    "Afterwards you will read only the task and your summary. Call no tool."
)
"""The default of `Env.ask_summary`."""
_HEADING = "Your summary of the conversation so far:"


def first_prompt_and(summary: str, trajectory: Trajectory) -> list[Message]:
    """The messages of the first prompt, with a summary at the end of the last message of the user.

    Raises ValueError for a first prompt without messages.
    """
    first = trajectory.messages[: min(trajectory.replies, default=0)]
    if not first:
        raise ValueError("the first prompt is raw text: write after_summary(trajectory, summary), which returns Raw")
    text = f"{_HEADING}\n{summary}"
    if first[-1].get("role") != "user":
        return [*first, {"role": "user", "content": text}]
    content: Any = first[-1].get("content")
    if has_image(content):
        return [*first[:-1], {**first[-1], "content": [*content, {"type": "text", "text": f"\n\n{text}"}]}]
    return [*first[:-1], {**first[-1], "content": f"{text_of(content)}\n\n{text}"}]
