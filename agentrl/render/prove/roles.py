"""Check whether the template writes messages in roles and positions that only clients of the gateway use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agentrl.render.learn.probe import ASKED, QUESTION, assistant
from agentrl.render.template import Template
from agentrl.render.turns import Turns
from agentrl.types import Message, ToolCall

_WORD = re.compile(r"zqrole\d")
_TWICE: Sequence[Message] = ({"role": "user", "content": "zqrole3"}, {"role": "user", "content": "zqrole4"})


def roles_carried(template: Template, *, results: bool) -> dict[str, bool]:
    """Capability -> whether the template writes such messages in order: instructions at unusual positions, and
    consecutive user messages.

    A template drops a message without an error. So every message is a unique word, and the text must contain all words.
    """
    begins, answers = _says("user", 0), _says("assistant", 1)
    result = {"role": "tool", "tool_call_id": "call00000", "name": "lookup", "content": "result"}
    asks = [QUESTION, assistant("", [ASKED]), result, _says("system", 0)]
    later = [
        [begins, _says("system", 1), _says("assistant", 2), _says("user", 3), _says("system", 4)],
        [begins, answers, _says("system", 2)],
        *([asks] if results else ()),
    ]
    return {
        "developer": _carries(template, [_says("developer", 0), _says("user", 1), _says("assistant", 2)]),
        "later_system": all(_carries(template, messages) for messages in later),
        "users_in_a_row": _carries(template, [begins, _says("user", 1), _says("assistant", 2), *_TWICE]),
    }


def results_matched(turns: Turns) -> Literal["id", "place"]:
    """How the template links a result to its call: "id" if it writes the call's id at the result, else "place" (the
    order)."""
    calls = [ToolCall(f"zqrole00{i}", "lookup", {}) for i in range(2 if turns.profile.parallel_calls else 1)]
    if turns.template.forms.name_in_id:
        return "id"
    results = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "result"} for call in calls]
    content = "x" if turns.profile.calls_need_content else ""
    turn = assistant(content, [ASKED] * len(calls), calls)
    text = turns.template.try_render([QUESTION, turn, *results], generation_prompt=True) or ""
    return "id" if all(text.count(call.id) > 1 for call in calls) else "place"


def _says(role: str, number: int) -> Message:
    return {"role": role, "content": f"zqrole{number}"}


def _carries(template: Template, messages: Sequence[Message]) -> bool:
    text = template.try_render(messages, generation_prompt=True) or ""
    words = [word for message in messages for word in _WORD.findall(message["content"] or "")]
    return _WORD.findall(text) == words
