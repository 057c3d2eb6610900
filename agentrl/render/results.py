"""Find the call that a tool result answers: by its id, else by its name, else by the order of the calls.

Most templates write no id at a result. The model then takes the first result as the answer to its first call. So
results are written in the order of the calls, in any order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from agentrl.types import Message, ToolCall

T = TypeVar("T")


class CallKey(NamedTuple):
    """The id and the name that link a call and its result, each "" if the message lacks it."""

    id: str
    name: str


def answered(calls: Sequence[CallKey], results: Sequence[CallKey]) -> list[int | None]:
    """For each result, the index of the call that it answers. None if the id belongs to no call, or if all calls are
    answered."""
    numbers = {call.id: number for number, call in reversed(list(enumerate(calls))) if call.id}
    matched: list[int | None] = [numbers.get(result.id) for result in results]
    open_calls = [number for number in range(len(calls)) if number not in matched]
    for place, result in enumerate(results):
        if result.id or not open_calls:
            continue
        named = [number for number in open_calls if result.name and calls[number].name == result.name]
        matched[place] = (named or open_calls)[0]
        open_calls.remove((named or open_calls)[0])
    return matched


def ordered(items: Sequence[T], matched: Sequence[int | None]) -> list[T]:
    """The items, with all items that have a number sorted by number. Items without a number keep their positions."""
    numbered = sorted((number, place) for place, number in enumerate(matched) if number is not None)
    places = iter([place for _, place in numbered])
    return [item if number is None else items[next(places)] for item, number in zip(items, matched, strict=True)]


def in_call_order(messages: Sequence[Message], calls: Sequence[ToolCall], *, by_id: bool = False) -> list[Message]:
    """The messages after a turn, with the results in the order of the calls. Each result without an id gets the id of
    its call.

    With `by_id`, for a template that writes an id at each result, the order is kept.
    """
    return _in_call_order(messages, [CallKey(call.id, call.name) for call in calls], by_id)


def all_in_call_order(messages: Sequence[Message], *, by_id: bool = False) -> list[Message]:
    """A conversation, with the results after each turn as in `in_call_order`."""
    turns = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    if not any(message.get("role") == "tool" for message in messages):
        return list(messages)
    conversation = list(messages[: turns[0]] if turns else messages)
    for start, end in pairwise([*turns, len(messages)]):
        calls = [_key_of_call(call) for call in messages[start].get("tool_calls") or ()]
        conversation += [messages[start], *_in_call_order(messages[start + 1 : end], calls, by_id)]
    return conversation


def _in_call_order(messages: Sequence[Message], calls: Sequence[CallKey], by_id: bool) -> list[Message]:
    places = [i for i, message in enumerate(messages) if message.get("role") == "tool"]
    if not places or not calls:
        return list(messages)
    if len(places) == len(calls) == 1:
        return [_with_id(message, calls, 0) if i == places[0] else message for i, message in enumerate(messages)]
    matched = answered(calls, [_key_of_result(messages[i]) for i in places])
    numbers = dict(zip(places, matched, strict=True))
    answers = [_with_id(message, calls, numbers.get(i)) for i, message in enumerate(messages)]
    return answers if by_id else ordered(answers, [numbers.get(i) for i in range(len(answers))])


def _with_id(message: Message, calls: Sequence[CallKey], number: int | None) -> Message:
    if number is None or message.get("tool_call_id"):
        return message
    return {**message, "tool_call_id": calls[number].id}


def _key_of_result(message: Message) -> CallKey:
    return CallKey(str(message.get("tool_call_id") or ""), str(message.get("name") or ""))


def _key_of_call(call: Mapping[str, Any]) -> CallKey:
    function = call.get("function") or call
    return CallKey(str(call.get("id") or ""), str(function.get("name") or ""))
