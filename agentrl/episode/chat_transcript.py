"""The turns of a MessageEngine, whose speaker (an API model, a person) writes messages. The messages are the original,
and the tokens are only an encoding."""

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
    """The messages of a conversation with a speaker, and the data about the speaker in `Trajectory.info["player"]`."""

    _last: ChatReply | None = None
    _at: dict[int, tuple[Message, Action]] = field(default_factory=dict)
    """Index in `Trajectory.messages` -> the speaker's message in the form for its later requests, and the message's
    action."""

    @property
    def any(self) -> bool:
        """Whether the speaker has answered at all."""
        return bool(self._at)

    def heard(self, generation: Generation, trajectory: Trajectory) -> None:
        """Record the speaker's latest message, and add up the usage."""
        self._last = reply = generation.said
        if reply is None:
            return
        player = trajectory.info.setdefault("player", dict(reply.by))
        for name, value in reply.counts.items():
            player[name] = player.get(name, 0) + value

    def read(self, action: Action, trajectory: Trajectory) -> Action:
        """The action of the speaker's last message, for the Env. `action` is parsed from the tokens, and may lack parts
        of the message."""
        if self._last is None or action.finish_reason != "stop":
            return action
        action, reason = as_said(action, self._last.message)
        if reason is not None:
            self.not_carried(trajectory, reason, len(trajectory.said))
        return action

    def keep(self, trajectory: Trajectory) -> None:
        """Keep the speaker's last message for later requests. Call this method after `append_action`."""
        action = trajectory.last_action if self._last is not None else None
        if self._last is not None and action is not None:
            cut = action.finish_reason != "stop"
            message = {"role": "assistant", "content": action.text} if cut else self._last.sent_back
            self._at[len(trajectory.messages) - 1] = message, action
            self._last = None

    def not_carried(self, trajectory: Trajectory, reason: str, turn: int | None = None) -> None:
        """Record the reason why the tokens of a turn (default: the last turn) differ from the speaker's message or from
        the Env's observation."""
        turn = len(trajectory.said) - 1 if turn is None else turn
        trajectory.info["player"].setdefault("not_carried", {}).setdefault(str(turn), reason)

    def messages(self, trajectory: Trajectory, renderer: Renderer) -> list[Message]:
        """The conversation for the speaker's next request: the speaker's own messages unchanged, and raw text as
        messages of the user."""
        conversation, open_calls, messages = list[Message](), _OpenCalls(), trajectory.conversation
        first = trajectory.segment.first_message
        if not messages or messages[0].get("role") == "assistant":
            prompt = next(segment for segment in trajectory.segments if segment.first_message == first)
            conversation.append({"role": "user", "content": renderer.decode(prompt.ids[: prompt.prompt_length])})
        raws = [turn.raw for turn in trajectory.turns]
        turn = sum(place < first for place in self._at)
        for place, message in enumerate(messages, first):
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
    """The calls of the speaker's last message that have no result yet. Servers require a result for each call."""

    ids: dict[str, str] = field(default_factory=dict)
    """Id of a call in the action -> the speaker's own id."""
    errors: dict[str, str] = field(default_factory=dict)
    """Id of an unreadable call in the action -> the error."""

    @classmethod
    def of(cls, reply: Message, action: Action) -> _OpenCalls:
        ids = [call["id"] for call in reply.get("tool_calls", ())]
        calls = list(action.calls[: len(ids)])
        names = [call.id for call in calls] + ids[len(calls) :]
        errors = {call.id: call.error for call in calls if call.error is not None}
        return cls(dict(zip(names, ids, strict=True)), errors)

    def answered(self, message: Message) -> list[Message]:
        """A message of the Env in the speaker's form. Before a message that is no result, results are added for all
        open calls."""
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
        """A result for each open call, which says that the call was not answered. No call is open afterwards."""
        open_ids = [*self.ids.values()]
        self.ids.clear()
        self.errors.clear()
        return [{"role": "tool", "tool_call_id": name, "content": _NOT_ANSWERED} for name in open_ids]


def as_said(action: Action, message: Message) -> tuple[Action, str | None]:
    """The action of a speaker's message, and a description of its difference from the tokens' action (None if both are
    equal).

    A thought that the template cannot carry does not count as a difference: the tokens hold the message without the
    thought.
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
    """The messages with tool results as messages of the user, for a template that cannot carry tool results."""
    text = "\n\n".join(str(message.get("content") or "") for message in messages)
    return [{"role": "user", "content": text}]


def cut_to(budget: int, generation: Generation) -> Generation:
    """The generation cut to its first `budget` tokens."""
    tokens, log_probs = generation.tokens[:budget], generation.log_probs[:budget]
    return replace(generation, tokens=tokens, log_probs=log_probs, finish_reason="length", matched=None)
