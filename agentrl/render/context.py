"""The part of a history that a template reads for the text after a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.render.learn.probe import QUESTION, RESULT, assistant
from agentrl.types import Message, ToolCall

LEADING = ("system", "developer")
"""Roles of instructions at the start of a conversation."""


@dataclass(frozen=True, slots=True)
class Context:
    """The part of the history that a template needs for the text after a turn. Most templates need no history."""

    system: bool = False
    """Whether to render the system message: Mistral-Nemo repeats it in the last user message, SmolLM3 looks for
    `/no_think` in it."""
    calls: Literal["none", "last", "one", "all"] = "none"
    """Placeholders (a call and its result) to render for earlier calls. none: no placeholder. last: a single
    placeholder if a result is right before the turn: some templates look two messages back. one: a single placeholder
    if the history has any result: some templates open a list of results once. all: a placeholder for each result: some
    templates number the calls."""
    whole: bool = False
    """Whether to render every message: some templates look for a switch in any message, or count failed results."""

    def before(self, history: Sequence[Message]) -> list[Message]:
        """The messages to render before the sampled turn, which is the last message of `history`."""
        if self.whole:
            return whole(history)
        first = history[:1] if self.system and history and history[0].get("role") in LEADING else ()
        messages: list[Message] = [*first, QUESTION]
        if self.calls != "none":
            within = history[-2:-1] if self.calls == "last" else history
            answered = sum(message.get("role") == "tool" for message in within)
            for i in range(answered if self.calls == "all" else min(answered, 1)):
                call = ToolCall(f"p{i:08}", "lookup", {})
                messages += [assistant("", ["x"], [call]), {**RESULT, "tool_call_id": call.id}]
        return messages


CONTEXTS = (
    Context(),
    Context(system=True),
    Context(calls="one"),
    Context(system=True, calls="last"),
    Context(system=True, calls="one"),
    Context(calls="all"),
    Context(whole=True),
)
"""Contexts from the cheapest to the most expensive. Certification takes the first context with which all bridges are
right."""


def whole(history: Sequence[Message]) -> list[Message]:
    """All messages before the sampled turn, which is the last message of `history`. A question is added if the history
    has no user's message."""
    before = list(history[:-1])
    if any(message.get("role") == "user" for message in before):
        return before
    first = 1 if before and before[0].get("role") in LEADING else 0
    return [*before[:first], QUESTION, *before[first:]]


def outlined(messages: Sequence[Message]) -> list[Message]:
    """The messages with a placeholder for each turn of the model, because a template may refuse turns of its own model.

    Placeholders keep the calls' ids and names. Consecutive turns, which a Raw observation may cause, become a single
    turn.
    """
    outline: list[Message] = []
    for message in messages:
        if message.get("role") != "assistant":
            outline.append(message)
        elif not outline or outline[-1].get("role") != "assistant":
            calls = [_call(call) for call in message.get("tool_calls") or ()]
            outline.append(assistant("" if calls else "x", ["x"] * len(calls), calls))
    return outline


def _call(call: Mapping[str, object]) -> ToolCall:
    function = call.get("function") or call
    name = function.get("name") if isinstance(function, Mapping) else None
    return ToolCall(str(call.get("id") or ""), str(name or "unknown"), {})
