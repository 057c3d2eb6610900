"""The tail of a rendered conversation: the text after the sampled turn, in parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.render.learn.close import Close, behind
from agentrl.render.learn.probe import ASKED, QUESTION, SAID, assistant
from agentrl.render.learn.profile import Profile
from agentrl.render.read.thinking import shared
from agentrl.render.template import Template
from agentrl.types import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Tail:
    """The text of a rendered conversation after the words of its sampled turn: the end of the turn, the new messages,
    the next generation prompt."""

    before_stop: str
    stop: str
    after_stop: str
    observation: str
    prompt: str
    ends: frozenset[str] = frozenset()
    """Texts of stop tokens that end a turn as `stop` does."""

    @property
    def text(self) -> str:
        """The whole text."""
        return self.before_stop + self.stop + self.after_stop + self.observation + self.prompt


def tail(
    template: Template,
    profile: Profile,
    calls: Sequence[ToolCall],
    new: Sequence[Message],
    *,
    content: bool,
    before: Sequence[Message] = (QUESTION,),
) -> Tail:
    """The template's text after an assistant turn with these calls and before the next turn, with the messages `new`.

    A placeholder takes the place of the turn: the calls' ids and names are real, content and arguments are sentinels.
    So the cost depends only on `new`. Raises TemplateError if the template refuses the messages, or does not end the
    turn.
    """
    conversation, visible, words = _conversation(profile, calls, new, content, before)
    text = template.render(conversation, generation_prompt=True)
    bare = template.render(conversation)
    return split(template, *behind_turn(profile, visible, text, bare, words))


def text_behind(
    template: Template,
    profile: Profile,
    calls: Sequence[ToolCall],
    new: Sequence[Message],
    *,
    content: bool,
    before: Sequence[Message],
) -> str:
    """The text of a tail in one piece. Takes a single render, where `tail` takes two."""
    conversation, _, (content_word, argument_word) = _conversation(profile, calls, new, content, before)
    return behind(template.render(conversation, generation_prompt=True), [argument_word, content_word])


def _conversation(
    profile: Profile, calls: Sequence[ToolCall], new: Sequence[Message], content: bool, before: Sequence[Message]
) -> tuple[list[Message], Sequence[ToolCall], tuple[str, str]]:
    """Three values: the conversation with a placeholder for the turn, the placeholder's calls, and its sentinels
    (unique words)."""
    words = _fresh([*before, *new])
    visible = calls if profile.parallel_calls else calls[:1]
    return [*before, stand_in(profile, visible, content, words), *new], visible, words


def stand_in(profile: Profile, calls: Sequence[ToolCall], content: bool, words: tuple[str, str]) -> Message:
    """The placeholder of a turn; `words` are its sentinels, of content and of arguments."""
    content_word, argument_word = words
    says = content and not (calls and profile.content_after_calls)
    text = content_word if says or not calls or profile.calls_need_content else ""
    return assistant(text, [argument_word] * len(calls), calls)


def behind_turn(
    profile: Profile, calls: Sequence[ToolCall], text: str, bare: str, words: tuple[str, str]
) -> tuple[Close, str, str]:
    """Three values: the end of the turn, the text from its last sentinel to the generation prompt, and the generation
    prompt.

    `text` is a rendered conversation, and `bare` the same conversation without a generation prompt.
    """
    content_word, argument_word = words
    prompt = text[len(bare) :] if text.startswith(bare) else ""
    rest = behind(text, [argument_word, content_word])
    close = profile.called if argument_word in text and profile.called else profile.answer
    if calls:  # a call's syntax may continue after its arguments
        syntax = close.before_stop.replace("call00000", calls[-1].id).replace("lookup", calls[-1].name or "unknown")
        close = replace(close, before_stop=syntax)
    return close, rest[: len(rest) - len(prompt)], prompt


def _fresh(new: Sequence[Message]) -> tuple[str, str]:
    """Sentinels that the new messages do not contain, even if a tool's result holds the usual sentinels."""
    text = json.dumps([dict(message) for message in new], default=str)
    content_word, argument_word = SAID, ASKED
    while content_word in text or argument_word in text:
        content_word, argument_word = f"{content_word}x", f"{argument_word}x"
    return content_word, argument_word


def split(template: Template, close: Close, body: str, prompt: str) -> Tail:
    """Cut the text after a turn into a Tail. If the text lacks the end of the turn, the Tail's end of the turn is
    empty."""
    before = close.before_stop if body.startswith(close.before_stop) else shared(close.before_stop, body)
    rest = body[len(before) :]
    if close.stop and rest.startswith(close.stop):
        rest = rest.removeprefix(close.stop)
        after = close.after_stop if rest.startswith(close.after_stop) else ""
        ends = frozenset({close.stop, close.stop_if_last} - {""})
        return Tail(before, close.stop, after, rest.removeprefix(after), prompt, ends)
    special = template.special_in(rest)
    if special is not None and not close.stop:
        stop, token, observation = rest.partition(special[0])
        return Tail(before, stop + token, "", observation, prompt, frozenset({token}))
    return Tail(before, "", "", rest, prompt)
