"""Messages that answer unreadable tool calls. The messages are joined to the Env's observation, in roles that the
template supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl._util.texts import text_of
from agentrl.errors import BadCallPolicy
from agentrl.image import Image, has_image, normal_content
from agentrl.plain import text, to_json
from agentrl.render.media import as_messages
from agentrl.types import Action, Message, Observation, Observed, Raw, ToolCall


def observed(observation: Observation, where: str) -> Observed:
    """An Env's observation as plain data, converted once on entry. Raises TypeError for any other value."""
    if isinstance(observation, Raw) and isinstance(observation.text, str):
        return Raw(text(observation.text), text(observation.end))
    if isinstance(observation, str):
        return [{"role": "user", "content": text(observation)}]
    readable = isinstance(observation, Image | Sequence) and not isinstance(observation, bytes | bytearray)
    entries = as_messages(observation) if readable else ()
    if not readable or not all(isinstance(m, Mapping) and "role" in m for m in entries):
        raise TypeError(
            f"{where} gave {observation!r:.80}; return text, an Image, a list of these, a list of messages with a role "
            "each, or Raw"
        )
    normalized = [{**m, "content": normal_content(m["content"])} if has_image(m.get("content")) else m for m in entries]
    messages: list[Message] = to_json(normalized, where)
    return messages


def with_calls(action: Action, calls: tuple[ToolCall, ...]) -> Action:
    """A copy of the action with other calls. Each turn makes two copies, and `dataclasses.replace` takes twice as
    long."""
    return Action(
        action.text, action.content, action.reasoning, calls, action.finish_reason, action.matched, action.tokens
    )


def messages_of(observed: Observed) -> Sequence[Message]:
    """The messages of an observation; Raw has none."""
    return () if isinstance(observed, Raw) else observed


def replies(action: Action, policy: BadCallPolicy, capabilities: Mapping[str, bool]) -> list[Message]:
    """A message for each unreadable call, with the text of the policy.

    The role is usually `tool`. The role is `user` if the turn has no readable call and the template cannot carry a tool
    result without a call: some templates refuse such a result, others drop it silently.
    """
    as_tool = capabilities.get("orphan_tool", False) or any(call.error is None for call in action.calls)
    messages: list[Message] = []
    for call in action.calls:
        if call.error is not None:
            content = text(policy.reply(call.error))
            tool = {"role": "tool", "tool_call_id": call.id, "name": call.name or "unknown", "content": content}
            messages.append(tool if as_tool else {"role": "user", "content": content})
    return messages


def joined(pending: Observed, last: Observation, capabilities: Mapping[str, bool]) -> Observed:
    """Two observations joined. If the template forbids a user's message after tool results, its text is appended to the
    last result.

    Raises TypeError for a Raw together with messages, because a Raw continues the model's turn and messages end it.
    """
    if isinstance(pending, Raw) and isinstance(last, Raw):
        return Raw(pending.text + text(last.text), pending.end + text(last.text))
    if isinstance(pending, Raw) or isinstance(last, Raw):
        raise TypeError("last_turn returned Raw after messages, or messages after Raw; return what `step` returns")
    if not isinstance(last, str) or pending[-1].get("role") != "tool" or capabilities.get("user_after_tool", False):
        return [*pending, *messages_of(observed(last, "last_turn"))]
    before: Any = pending[-1].get("content")
    if has_image(before):
        return [*pending[:-1], {**pending[-1], "content": [*before, {"type": "text", "text": f"\n\n{text(last)}"}]}]
    return [*pending[:-1], {**pending[-1], "content": f"{text_of(before)}\n\n{text(last)}"}]
