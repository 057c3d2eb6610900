"""Learn frames (the template's text around content) from turns with and without thoughts and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render.learn.probe import ASKED, QUESTION, SAID, THOUGHT, assistant
from agentrl.render.learn.profile import Profile
from agentrl.render.read.calls import Block
from agentrl.render.read.frames import Frames
from agentrl.render.read.lexer import Lexer, has_tag
from agentrl.render.template import Template


def learn_frames(
    template: Template, profile: Profile, block: Block | None, sampled: Callable[[Mapping[str, Any]], str]
) -> Frames:
    """Learn the frames from turns with content, and from the text before calls in turns without content."""
    lead = block.lead if block is not None else ""
    framing = {
        literal.strip()
        for text in _turns(profile, sampled)
        for literal in _around(template, block, lead + profile.thinking.behind(text))
    }
    bare, thinking = template.render([QUESTION]), profile.thinking
    prompt = template.render([QUESTION], generation_prompt=True).removeprefix(bare).strip()
    literals = {*framing, *_around_turns(profile, prompt, framing)}
    literals -= {"", thinking.open, thinking.close, prompt + thinking.open}
    if thinking.ends_more:
        literals.add(thinking.close)
    return Frames(tuple(sorted(literals, key=lambda literal: (-len(literal), literal))), lead)


def _around_turns(profile: Profile, prompt: str, literals: Iterable[str]) -> Iterator[str]:
    """The text around a whole turn, if its content is in frames with a tag."""
    framed = [literal for literal in literals if has_tag(literal)]
    if framed and has_tag(prompt):
        yield prompt
        yield from (prompt + literal for literal in framed)
    if framed and profile.answer.stop != profile.answer.sampled_stop:
        yield profile.answer.stop


def _turns(profile: Profile, sampled: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
    """The turns, each without its stop token."""
    thoughts: tuple[dict[str, str], ...] = ({}, {"reasoning_content": THOUGHT})
    for thought in thoughts:
        for turn in (assistant(SAID), assistant(SAID, [ASKED]), assistant("", [ASKED])):
            close = (profile.called if "tool_calls" in turn else None) or profile.answer
            if "tool_calls" in turn and profile.called is None:
                continue
            try:
                yield sampled({**turn, **thought}).removesuffix(close.sampled_stop)
            except TemplateError:
                continue


def _around(template: Template, block: Block | None, text: str) -> Iterator[str]:
    calls_at = len(text)
    if ASKED in text and block is not None:
        # the lead is part of the text here, and the lexer is given all of it
        start = block.find(Lexer(template, block.markers)(template.encode(text)), text.find(SAID) + 1)
        calls_at = len(text) if start is None else start
    elif ASKED in text:
        return
    before, sentinel, after = text[:calls_at].partition(SAID)
    yield before
    if sentinel:
        yield after
