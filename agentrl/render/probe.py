"""What a template writes around an assistant turn, learnt by rendering sentinels and finding them again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render.stops import named_stops
from agentrl.render.template import REASONING_FIELDS, Forms, Template, breaks
from agentrl.render.thinking import Thinking, shared
from agentrl.types import Message, ToolCall

SAID, ASKED, THOUGHT = "zqsaid", "zqasked", "zqthought"
"""Sentinels for what a turn says, asks and thinks: plain words survive trimming and quoting."""

TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look up."}},
            "required": ["query"],
        },
    },
}
QUESTION: Message = {"role": "user", "content": "question"}
REPLY: Message = {"role": "user", "content": "reply"}
RESULT: Message = {"role": "tool", "tool_call_id": "call00000", "name": "lookup", "content": "result"}


@dataclass(frozen=True, slots=True)
class Close:
    """What the template writes after the last sentinel of a turn: lead + stop + trail.

    The model samples up to `stop`; `lead` is the rest of a call's syntax, or whitespace. `stop` is empty where the
    template ends a turn only by what follows: there the next special token ends it (GLM's `<|user|>`).
    """

    lead: str
    stop: str
    trail: str
    final: str = ""
    """The stop token of a turn that nothing follows, where it is another one (gpt-oss' `<|return|>`)."""
    next: str = ""
    """Where `stop` is empty: the special token that ends the turn when a message follows."""
    rest: str = ""
    """What stands behind the turn's last token when nothing follows: some templates write an end of text there."""

    @property
    def sampled(self) -> str:
        """The token with which a model ends such a turn."""
        return self.final or self.stop or self.next


@dataclass(frozen=True, slots=True)
class Profile:
    """The facts of one template that probing found."""

    said: Close
    called: Close | None
    """None: the template does not write tool calls."""
    parallel_calls: bool
    calls_need_content: bool
    content_after_calls: bool
    """The template moves what a turn says behind its calls; a model says it before them."""
    carries_orphans: bool
    """The template shows a tool result that answers no call."""
    thinking: Thinking
    stop_token_ids: frozenset[int]

    @classmethod
    def of(cls, template: Template) -> Profile:
        """Probe the template. Raises TemplateError where an assistant's turn cannot be found or nothing ends it."""
        text = template.render([QUESTION, assistant(SAID)])
        if SAID not in text:
            raise TemplateError(f"the chat template of {template.name} does not write what the assistant said")
        said = _close(template, assistant(SAID), REPLY, SAID)
        if not said.sampled:
            raise TemplateError(f"the chat template of {template.name} does not close this turn: {text[-40:]!r}")
        needs_content = ASKED not in (template.try_render([QUESTION, assistant("", [ASKED])]) or "")
        content = SAID if needs_content else ""
        turn = assistant(content, [ASKED])
        writes_calls = ASKED in (template.try_render([QUESTION, turn]) or "")
        two = template.try_render([QUESTION, assistant(content, [f"{ASKED}0", f"{ASKED}1"])]) or ""
        between = two.partition(f"{ASKED}0")[2].partition(f"{ASKED}1")
        syntax = between[0] if between[1] else ""
        called = _close(template, turn, RESULT, ASKED, syntax) if writes_calls else None
        orphan = template.try_render([QUESTION, assistant(SAID), RESULT]) or ""
        both = template.try_render([QUESTION, assistant(SAID, [ASKED]), RESULT]) or ""
        return cls(
            said=said,
            called=called,
            parallel_calls=bool(between[1]),
            calls_need_content=needs_content,
            carries_orphans=RESULT["content"] in orphan.rpartition(SAID)[2],
            content_after_calls=0 <= both.rfind(ASKED) < both.rfind(SAID),
            thinking=_thinking(template),
            stop_token_ids=frozenset(_stop_ids(template, said, called)),
        )


def settle(template: Template) -> Template:
    """The template with the forms of messages that it takes.

    Raises TemplateError where it cannot write a call because it breaks; one that refuses calls in its own words, or
    leaves them out, is a template without calls.
    """
    errors, found = list[TemplateError](), list[Template]()
    for form, content in product(_FORMS, ("", SAID)):
        tried = replace(template, forms=form)
        try:
            text = tried.render([QUESTION, assistant(content, [ASKED])])
        except TemplateError as exc:
            errors.append(exc)
        else:
            as_python = "{'query'" in text  # a mapping that was written with Python's quotes is no JSON
            found += [tried] if ASKED in text and not as_python else []
            if found:
                break
    broken = [error for error in errors if breaks(error)]
    if broken and not found and len(errors) == 2 * len(_FORMS):
        raise broken[0]
    settled = found[0] if found else template
    for name in REASONING_FIELDS:
        tried = replace(settled, forms=replace(settled.forms, reasoning_field=name))
        for turn in (assistant(SAID), assistant("", [ASKED])):
            if THOUGHT in (tried.try_render([QUESTION, {**turn, name: THOUGHT}]) or ""):
                return tried
    return settled


_FORMS = (Forms(False, ""), Forms(False, None), Forms(True, ""), Forms(True, None))
"""The likeliest first."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A rendered conversation from its sampled turn on: what closes the turn, what is new, what asks for the next."""

    lead: str
    stop: str
    trail: str
    observation: str
    prompt: str
    ends: frozenset[str] = frozenset()
    """Stop tokens any of which ends the turn as `stop` does."""


def tail(
    template: Template,
    profile: Profile,
    calls: Sequence[ToolCall],
    new: Sequence[Message],
    *,
    content: bool,
    before: Sequence[Message] = (QUESTION,),
) -> Tail:
    """What the template writes behind an assistant turn with these calls, when `new` follows it.

    A stand-in takes the place of the turn: the calls' ids and names are real, content and arguments are sentinels, so
    the cost depends on `new` alone. Raises TemplateError where the template refuses, or writes no end of the turn.
    """
    said, asked = _fresh(new)
    shown = calls if profile.parallel_calls else calls[:1]
    says = content and not (shown and profile.content_after_calls)
    turn = assistant(said if says or not shown or profile.calls_need_content else "", [asked] * len(shown), shown)
    text = template.render([*before, turn, *new], generation_prompt=True)
    bare = template.render([*before, turn, *new])
    prompt = text[len(bare) :] if text.startswith(bare) else ""
    rest = _after(text, [asked, said])
    body = rest[: len(rest) - len(prompt)]
    close = profile.called if asked in text and profile.called else profile.said
    if shown:  # a call's syntax may go on behind its arguments
        lead = close.lead.replace("call00000", shown[-1].id).replace("lookup", shown[-1].name or "unknown")
        close = replace(close, lead=lead)
    return _split(template, close, body, prompt)


def assistant(content: str, arguments: Sequence[str] = (), calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """An assistant message whose n-th call asks for `arguments[n]`, under the id and name of `calls[n]` if given."""
    known = calls or [ToolCall(f"call0000{i}", "lookup", {}) for i in range(len(arguments))]
    written = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name or "unknown", "arguments": {"query": value}},
        }
        for call, value in zip(known, arguments, strict=True)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return {**message, "tool_calls": written} if written else message


def behind_question(text: str) -> str:
    """What a template writes behind QUESTION."""
    return text.rpartition(QUESTION["content"])[2]


def _fresh(new: Sequence[Message]) -> tuple[str, str]:
    """Sentinels that the new messages do not contain, whatever a tool has read."""
    text = json.dumps([dict(message) for message in new], default=str)
    said, asked = SAID, ASKED
    while said in text or asked in text:
        said, asked = f"{said}x", f"{asked}x"
    return said, asked


def _after(text: str, sentinels: Iterable[str]) -> str:
    """What stands behind the first sentinel that survived, at its last place in the sampled turn."""
    for sentinel in sentinels:
        if sentinel in text:
            return text[text.rindex(sentinel) + len(sentinel) :]
    raise TemplateError("the chat template drops an assistant's turn that is followed by these messages")


def _close(template: Template, turn: Message, reply: Message, sentinel: str, syntax: str = "") -> Close:
    """What ends a turn both when nothing follows (some templates then add an end of text) and when a reply does.

    A special token of `syntax`, which stands between two calls, ends a call and not the turn.
    """
    alone = _after(template.render([QUESTION, turn]), [sentinel])
    final = template.last_special(alone, syntax)
    followed = template.try_render([QUESTION, turn, reply], generation_prompt=True)
    if followed is None or sentinel not in followed:  # what ends the turn alone is all there is to go by
        return _close_at(alone, final, alone)
    followed = _after(followed, [sentinel])
    common = shared(alone, followed)
    stop = template.last_special(common, syntax)
    if stop:
        return _close_at(common, stop, alone)
    following = (template.special_in(followed[len(common) :]) or ("",))[0]
    behind_user = behind_question(template.render([QUESTION]))
    if final and following and following in behind_user:  # it ends messages, and so this turn as `final` would
        lead, _, rest = followed.partition(following)
        trail = shared(behind_user.partition(following)[2], rest)
        return Close(lead, following, trail, final, rest=alone.rpartition(final)[2])
    return Close(common, "", "", final, following, alone.rpartition(final)[2] if final else "")


def _close_at(text: str, stop: str, alone: str) -> Close:
    if not stop:
        return Close(text, "", "")
    lead, _, trail = text.partition(stop)
    return Close(lead, stop, trail, rest=alone[len(lead) + len(stop) :])


def _split(template: Template, close: Close, body: str, prompt: str) -> Tail:
    """The text behind a turn, cut where the turn ends. Where it lacks the turn's close, nothing of it is the close."""
    lead = close.lead if body.startswith(close.lead) else shared(close.lead, body)
    rest = body[len(lead) :]
    if close.stop and rest.startswith(close.stop):
        rest = rest.removeprefix(close.stop)
        trail = close.trail if rest.startswith(close.trail) else ""
        ends = frozenset({close.stop, close.final} - {""})
        return Tail(lead, close.stop, trail, rest.removeprefix(trail), prompt, ends)
    found = template.special_in(rest)
    if found is not None and not close.stop:
        stop, token, observation = rest.partition(found[0])
        return Tail(lead, stop + token, "", observation, prompt, frozenset({token}))
    return Tail(lead, "", "", rest, prompt)


def _thinking(template: Template) -> Thinking:
    """The markers around a thought. Where the template writes none, those that most models use."""
    field = template.forms.reasoning_field
    for said, asked in ((SAID, ()), ("", (ASKED,))):
        turn = assistant(said, asked)
        text = template.try_render([QUESTION, {**turn, field: THOUGHT}]) or ""
        if text.count(THOUGHT) != 1:
            continue
        before, _, after = text.partition(THOUGHT)
        prompt = behind_question(template.render([QUESTION], generation_prompt=True))
        return Thinking.found(behind_question(before), prompt, after.partition(SAID)[0])
    return Thinking()


def _stop_ids(template: Template, said: Close, called: Close | None) -> Iterable[int]:
    """Tokens that end a turn: the tokenizer's, the template's, and those the model's folder names."""
    tokenizer = template.tokenizer
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id
    for close in filter(None, (said, called)):
        found = template.special_in(close.sampled)
        if found is not None:
            yield found[1]
    if not said.stop and not said.final:
        text = template.try_render([QUESTION, assistant(SAID), RESULT]) or ""
        found = template.special_in(_after(text, [SAID])) if SAID in text else None
        if found is not None:
            yield found[1]
    yield from named_stops(getattr(tokenizer, "name_or_path", ""))
