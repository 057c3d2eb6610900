"""A memo that has always seen other strings before, so that an exactness test is a test of the memo too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render import memo
from agentrl.render.memo import Memo
from agentrl.render.tail import tail
from agentrl.render.template import Template

NEVER = 10**9
_plain_tail = Memo.tail


def primed_tail(self: Memo, template: Template, profile: Any, asked: Any, render: Callable[[], Any]) -> Any:
    """As `Memo.tail`, after a request of the same shape with other texts and ids. Nothing is compared meanwhile."""
    self.state.every = NEVER  # else a wrong bridge would be found and set right
    before, calls, new, content = asked
    calls = [replace(call, id=other(call.id)) for call in calls]
    new = [
        {key: other(value) if key in ("content", "tool_call_id") else value for key, value in message.items()}
        for message in new
    ]
    shape = memo.shape_of(template, memo.TailRequest(before, calls, new, content))
    if shape is not None and not self.state.off and shape.key not in self.scaffolds:
        try:
            made = tail(template, profile, calls, new, content=content, before=before)
            self._learn(template, profile, memo.TailRequest(before, calls, new, content), shape, made)
        except TemplateError:
            pass
    return _plain_tail(self, template, profile, asked, render)


def other(value: Any) -> Any:
    """Another string of the same length; equal strings stay equal, and no two become equal."""
    return "".join(map(_turned, value)) if isinstance(value, str) else value


def _turned(char: str) -> str:
    if char.isdigit() and char.isascii():
        return str((int(char) + 1) % 10)
    if char.isascii() and char.isalpha() and char not in "zZ":
        return chr(ord(char) + 1)
    return "a" if char == "z" else "A" if char == "Z" else char
