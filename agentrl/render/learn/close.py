"""Learn the text and the stop token with which a template ends an assistant's turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import TemplateError
from agentrl.render.learn.probe import QUESTION, behind_question
from agentrl.render.read.thinking import shared
from agentrl.render.template import Template
from agentrl.types import Message


@dataclass(frozen=True, slots=True)
class Close:
    """The template's text after the last word of a turn (of its content, or of its last call): before_stop + stop +
    after_stop.

    The model samples up to `stop`. `before_stop` is the rest of a call's syntax, or whitespace. `stop` is empty if a
    turn has no end of its own: the special token that begins the next message then ends the turn (GLM's `<|user|>`).
    """

    before_stop: str
    stop: str
    after_stop: str
    stop_if_last: str = ""
    """The stop token of the last turn of a conversation, if different from `stop` (gpt-oss' `<|return|>`). Else ""."""
    next_marker: str = ""
    """If `stop` is empty: the special token that begins the next message."""
    after_last: str = ""
    """The text after the stop token of the last turn of a conversation: some templates write an end of text there."""

    @property
    def sampled_stop(self) -> str:
        """The token with which a model ends such a turn."""
        return self.stop_if_last or self.stop or self.next_marker


def close_of(template: Template, turn: Message, reply: Message, sentinel: str, syntax: str = "") -> Close:
    """Learn the end of a turn, both of the last turn of a conversation and of a turn that is followed by `reply`.
    `sentinel` is the last word of the turn.

    `syntax` is the text between two calls: a special token in it ends a call and not the turn.
    """
    alone = behind(template.render([QUESTION, turn]), [sentinel])
    final = template.last_special(alone, syntax)
    followed = template.try_render([QUESTION, turn, reply], generation_prompt=True)
    if followed is None or sentinel not in followed:  # the only evidence is the end of the turn alone
        return _close_at(alone, final, alone)
    followed = behind(followed, [sentinel])
    common = shared(alone, followed)
    stop = template.named_stop(common) or template.last_special(common, syntax)
    if stop:
        return _close_at(common, stop, alone)
    following = (template.special_in(followed[len(common) :]) or ("",))[0]
    behind_user = behind_question(template.render([QUESTION]))
    if final and following and following in behind_user:  # it ends every message, so it ends this turn as `final` would
        before, _, rest = followed.partition(following)
        behind_it = shared(alone.partition(following)[2], rest)
        eos = template.named_stop(behind_it)
        if eos and eos != following:  # a model continues to the end of sequence, after calls as after answers
            lead, _, after = behind_it.partition(eos)
            return Close(before + following + lead, eos, after)
        after = shared(behind_user.partition(following)[2], rest)
        if following in alone:  # the same token ends it either way; an end of text may follow it
            return Close(before, following, after, after_last=alone.partition(following)[2])
        return Close(before, following, after, final, after_last=alone.rpartition(final)[2])
    return Close(common, "", "", final, following, alone.rpartition(final)[2] if final else "")


def _close_at(text: str, stop: str, alone: str) -> Close:
    if not stop:
        return Close(text, "", "")
    before, _, after = text.partition(stop)
    return Close(before, stop, after, after_last=alone[len(before) + len(stop) :])


def behind(text: str, sentinels: Iterable[str]) -> str:
    """The text after the last occurrence of a sentinel. Of several sentinels, the first that occurs in the text is
    used.

    Raises TemplateError if the turn has no sentinel.
    """
    for sentinel in sentinels:
        if sentinel in text:
            return text[text.rindex(sentinel) + len(sentinel) :]
    raise TemplateError("the chat template drops an assistant's turn that is followed by these messages")
