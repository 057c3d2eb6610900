"""The position of a sampled turn in a conversation. A turn's first text in the template may depend on this position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.errors import TemplateError
from agentrl.render.ids import next_number
from agentrl.render.learn.probe import ASKED, QUESTION, RESULT, SAID, assistant
from agentrl.render.read.thinking import Thinking
from agentrl.render.template import Template
from agentrl.types import Message, ToolCall

_RESULT: Message = {**RESULT, "content": "zqresult"}
_NEAR = 128
"""Number of tokens before a turn that are read first."""
_IDS = re.compile(r"(?<![\w.-])functions\.[\w.-]+:\d+")


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """The position of a turn in a conversation, as far as the template's text depends on it."""

    after_result: bool = False
    """Whether the message before the turn is a tool's result, and not a user's message."""
    thinking: bool | None = None
    """Whether the turn begins within a thought. None: as after the template's own generation prompt."""
    number: int = 0
    """The number of the first call of the turn in the conversation, for templates that number calls."""

    def before(self, template: Template, *, content: str) -> list[Message]:
        """A short conversation with this position at its end. `content` is the content of turns with calls."""
        count = self.number if template.forms.numbers_calls else 0
        messages: list[Message] = [QUESTION]
        for i in range(max(count, self.after_result)):
            call = ToolCall(f"p{i:08}", "lookup", {})
            messages += [assistant(content, [ASKED], [call]), {**_RESULT, "tool_call_id": call.id}]
        if len(messages) > 1 and not self.after_result:
            messages += [assistant(SAID), QUESTION]
        return list(template.identified(messages))


class TurnPlaces:
    """Detects the position of a turn from the tokens before it."""

    def __init__(self, template: Template, thinking: Thinking, *, content: str, results: bool) -> None:
        self._template, self._thinking = template, thinking
        self._prompt = _prompt_after(template, TurnPlace().before(template, content=content))
        before = TurnPlace(after_result=True).before(template, content=content) if results else ()
        after = _prompt_after(template, before) if before else ""
        self._after_result = "" if after == self._prompt else after

    def at(self, prompt: Sequence[int]) -> TurnPlace:
        """The position after the tokens of a prompt."""
        place, forms = self._near(self._template.decode(prompt[-_NEAR:])), self._template.forms
        if place is None:
            place = TurnPlace(thinking=self._is_open(self._template.decode(prompt)))
        if forms.name_in_id:
            place = replace(place, number=next_number(_IDS.findall(self._template.decode(prompt))))
        return place

    def _near(self, text: str) -> TurnPlace | None:
        """The position after a text, if it ends with a generation prompt. If several prompts match, the longest
        counts."""
        ends = [end for end in (self._prompt, self._after_result) if end and text.endswith(end)]
        if not ends:
            return None
        return TurnPlace(after_result=max(ends, key=len) == self._after_result)

    def _is_open(self, text: str) -> bool:
        """Whether a text ends within a thought of the assistant's last turn."""
        opening = self._thinking.open
        header = self._prompt.partition(opening)[0] if opening else self._prompt
        if header.strip() and header in text:
            return self._thinking.left_open(text.rpartition(header)[2])
        return bool(opening) and text.rstrip().endswith(opening)


def _prompt_after(template: Template, before: Sequence[Message]) -> str:
    """The template's text between the last message and a turn. Empty if the template refuses these messages."""
    try:
        text, bare = template.render(before, generation_prompt=True), template.render(before)
    except TemplateError:
        return ""
    prompt = text[len(bare) :] if text.startswith(bare) else ""
    return prompt or text.rpartition(before[-1]["content"])[2]
