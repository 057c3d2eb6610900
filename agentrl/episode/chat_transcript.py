"""The turns of a player of messages. The player's messages are the record. Their tokens are only a copy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agentrl.types import JSON, Action, ChatReply, Generation, Message, ToolCall

if TYPE_CHECKING:
    from agentrl.render.base import Renderer
    from agentrl.trajectory.trajectory import Trajectory

_NOT_ANSWERED = "(This call was not executed.)"


@dataclass(slots=True)
class ChatTranscript:
    """The messages of a conversation, and the report about the player in `Trajectory.info["player"]`."""

    _last: ChatReply | None = None
    _at: dict[int, tuple[Message, Action]] = field(default_factory=dict)
    """The speaker's messages, in the form for its later requests, with their actions. Keys are indices of the
    trajectory's messages."""

    @property
    def any(self) -> bool:
        """Whether the speaker has answered at all."""
        return bool(self._at)

    def heard(self, generation: Generation, trajectory: Trajectory) -> None:
        """Record an answer, and add up the usage."""
        self._last = reply = generation.said
        if reply is None:
            return
        player = trajectory.info.setdefault("player", dict(reply.by))
        for name, value in reply.counts.items():
            player[name] = player.get(name, 0) + value

    def read(self, action: Action, trajectory: Trajectory) -> Action:
        """The action of the last answer, if its tokens parse to `action`. The Env gets the result."""
        if self._last is None or action.finish_reason != "stop":
            return action
        action, reason = as_said(action, self._last.message)
        if reason is not None:
            self.not_carried(trajectory, reason, len(trajectory.said))
        return action

    def keep(self, trajectory: Trajectory) -> None:
        """Keep the last answer for later requests. Call it after the action was appended."""
        action = trajectory.last_action if self._last is not None else None
        if self._last is not None and action is not None:
            cut = action.finish_reason != "stop"
            message = {"role": "assistant", "content": action.text} if cut else self._last.sent_back
            self._at[len(trajectory.messages) - 1] = message, action
            self._last = None

    def not_carried(self, trajectory: Trajectory, reason: str, turn: int | None = None) -> None:
        """Record that the tokens of a turn, by default the last, differ from the message or from the Env's answer."""
        turn = len(trajectory.said) - 1 if turn is None else turn
        trajectory.info["player"].setdefault("not_carried", {}).setdefault(str(turn), reason)

    def messages(self, trajectory: Trajectory, renderer: Renderer) -> list[Message]:
        """The conversation in the speaker's form: the speaker's own messages unchanged, raw text as the user's."""
        conversation, open_calls, turn = list[Message](), _OpenCalls(), 0
        if not trajectory.messages or trajectory.messages[0].get("role") == "assistant":
            prompt = trajectory.segments[0]
            conversation.append({"role": "user", "content": renderer.decode(prompt.ids[: prompt.prompt_length])})
        raws = [turn.raw for turn in trajectory.turns]
        for place, message in enumerate(trajectory.messages):
            if place not in self._at:
                conversation += open_calls.answered(message)
                continue
            reply, action = self._at[place]
            conversation += [*open_calls.left(), reply]
            open_calls = _OpenCalls.of(reply, action)
            if raw := raws[turn]:
                conversation += [*open_calls.left(), {"role": "user", "content": raw}]
            turn += 1
        return [*conversation, *open_calls.left()]


@dataclass(slots=True)
class _OpenCalls:
    """Calls of the last message without an answer. Servers require an answer to each."""

    ids: dict[str, str] = field(default_factory=dict)
    """The speaker's own id of each call, by the id in the action."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why each unreadable call could not be read."""

    @classmethod
    def of(cls, reply: Message, action: Action) -> _OpenCalls:
        ids = [call["id"] for call in reply.get("tool_calls", ())]
        calls = list(action.calls[: len(ids)])
        names = [call.id for call in calls] + ids[len(calls) :]
        errors = {call.id: call.error for call in calls if call.error is not None}
        return cls(dict(zip(names, ids, strict=True)), errors)

    def answered(self, message: Message) -> list[Message]:
        """A message of the Env in the speaker's form, after answers to the calls that the Env left open."""
        if message.get("role") == "tool":
            name = message.get("tool_call_id", "")
            self.errors.pop(name, None)
            return [{**message, "tool_call_id": self.ids.pop(name, name)}]
        blamed = next((name for name, error in self.errors.items() if error in str(message.get("content"))), None)
        if blamed is not None and message.get("role") == "user":
            # The answer to an unreadable call, under a template without another place for the answer.
            del self.errors[blamed]
            return [{"role": "tool", "tool_call_id": self.ids.pop(blamed), "content": message["content"]}]
        return [*self.left(), message]

    def left(self) -> list[Message]:
        """An answer to each open call."""
        open_ids = [*self.ids.values()]
        self.ids.clear()
        self.errors.clear()
        return [{"role": "tool", "tool_call_id": name, "content": _NOT_ANSWERED} for name in open_ids]


def as_said(action: Action, message: Message) -> tuple[Action, str | None]:
    """The action of the message, and the difference from the action of the tokens. None if both are exactly equal.

    A thought that the template cannot carry is no difference: the tokens are the answer without the thought.
    """
    content, thought = str(message.get("content") or "").strip(), message.get("reasoning_content")
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    carried = action.content.strip() == content, _written(action.calls) == _written(calls)
    corrected = replace(action, reasoning=action.reasoning if thought is None else str(thought))
    if all(carried):
        return corrected, None
    return replace(corrected, content=content, calls=tuple(calls)), _departure(calls, action, texts_equal=carried[0])


def _departure(calls: Sequence[ToolCall], action: Action, *, texts_equal: bool) -> str:
    if any(call.error is not None for call in calls):
        return "a call that cannot be read"
    if len(calls) > 1 and len(action.calls) != len(calls):
        return "several calls in one message"
    return "the calls read back differently" if texts_equal else "the text reads back differently"


def _call(call: Mapping[str, JSON]) -> ToolCall:
    function = call["function"]
    name, arguments = function["name"], function["arguments"]
    raw = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    error = None
    if not isinstance(arguments, Mapping):
        error, arguments = f"the arguments are not a JSON object: {arguments:.80}", {}
    elif not name:
        error = "the call has no name"
    return ToolCall(call["id"], name, arguments, raw, error)


def _written(calls: Sequence[ToolCall]) -> list[str]:
    return [json.dumps([call.name, call.arguments, call.error is None], sort_keys=True) for call in calls]


def as_user(messages: Sequence[Message]) -> list[Message]:
    """The messages with tool results as text of the user, for a template without tool results."""
    text = "\n\n".join(str(message.get("content") or "") for message in messages)
    return [{"role": "user", "content": text}]


def cut_to(budget: int, generation: Generation) -> Generation:
    """The first `budget` tokens."""
    tokens, log_probs = generation.tokens[:budget], generation.log_probs[:budget]
    return replace(generation, tokens=tokens, log_probs=log_probs, finish_reason="length", matched=None)
