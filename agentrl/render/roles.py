"""Messages in a role, or at a place, that a template may drop without a sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl._util.texts import texts_in
from agentrl.errors import TemplateError
from agentrl.types import Message

_REMEDIES = {
    "developer": 'send it as "system" at the start, or as "user"',
    "system": 'send it as "user"',
    "tool": 'send it as "user"',
    "user": "join it to the message before it",
}
_OTHER = 'a tool\'s result has the role "tool", and any other text the role "user"'


def unusual(messages: Sequence[Message], capabilities: Mapping[str, bool], before: str = "") -> bool:
    """Whether a message has a role or a place outside the certified capabilities.

    `before` is the role of the message before the messages.
    """
    roles = [str(message.get("role")) for message in messages]
    return any(
        not _usual(role, last, capabilities, first=not before and i == 0)
        for i, (last, role) in enumerate(zip([before, *roles], roles, strict=False))
    )


def _usual(role: str, last: str, capabilities: Mapping[str, bool], *, first: bool) -> bool:
    needs = {
        "assistant": "",
        "user": {"user": "users_in_a_row", "tool": "user_after_tool"}.get(last, ""),
        "tool": "tool_results",
        "system": "system" if first else "later_system",
        "developer": "developer" if first else "later_system",
    }.get(role, "other")
    return not needs or (capabilities.get(needs, False) and not (role == "developer" and not first))


def marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with a unique word in place of each text outside the model's turns."""
    return [{**message, "content": _word(i)} if _says(message) else message for i, message in enumerate(messages)]


def check_written(messages: Sequence[Message], text: str, template: str) -> None:
    """Raises TemplateError for the first of the `marked` messages whose word is not in `text`."""
    for i, message in enumerate(messages):
        if _says(message) and _word(i) not in text:
            role = str(message.get("role"))
            raise TemplateError(
                f"the chat template of {template} leaves out message {i + 1} of {len(messages)}, "
                f"which has the role {role!r}: {_REMEDIES.get(role, _OTHER)}"
            )


def _word(number: int) -> str:
    return f"zqrole{number}x"


def _says(message: Message) -> bool:
    texts = "".join(texts_in(message.get("content")))
    return message.get("role") != "assistant" and bool(texts.strip())
