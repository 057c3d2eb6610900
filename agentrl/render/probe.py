"""What a template writes around an assistant turn, learnt by rendering sentinels and finding them again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, TemplateError
from agentrl.render.template import Template
from agentrl.types import Message, ToolCall

SAID, ASKED = "zqsaid", "zqasked"
"""Sentinels for an assistant's content and for its calls' arguments: plain words survive trimming and quoting."""

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
    """What the template writes after the last sentinel of a turn, whatever follows: lead + stop + trail.

    The model samples up to `stop`; `lead` is the rest of a call's syntax, or whitespace. `stop` is empty in a template
    that writes none: there the next message's first special token ends the turn.
    """

    lead: str
    stop: str
    trail: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The facts of one template that probing found."""

    said: Close
    called: Close | None
    """None: the template does not write tool calls."""
    parallel_calls: bool
    calls_need_content: bool
    stop_token_ids: frozenset[int]

    @classmethod
    def of(cls, template: Template) -> Profile:
        """Probe the template. Raises TemplateError where an assistant's turn cannot be found or nothing ends it."""
        text = template.render([QUESTION, assistant(SAID)])
        if SAID not in text:
            raise TemplateError(f"the chat template of {template.name} does not write what the assistant said")
        said = _close(template, assistant(SAID), REPLY, SAID)
        needs_content = ASKED not in (template.try_render([QUESTION, assistant("", [ASKED])]) or "")
        content = SAID if needs_content else ""
        turn = assistant(content, [ASKED])
        writes_calls = ASKED in (template.try_render([QUESTION, turn]) or "")
        called = _close(template, turn, RESULT, ASKED) if writes_calls else None
        two = template.try_render([QUESTION, assistant(content, [f"{ASKED}0", f"{ASKED}1"])]) or ""
        return cls(
            said=said,
            called=called,
            parallel_calls=f"{ASKED}0" in two and f"{ASKED}1" in two,
            calls_need_content=needs_content,
            stop_token_ids=frozenset(_stop_ids(template, said, called)),
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """A rendered conversation from its sampled turn on: what closes the turn, what is new, what asks for the next."""

    lead: str
    stop: str
    trail: str
    observation: str
    prompt: str


def tail(
    template: Template, profile: Profile, calls: Sequence[ToolCall], new: Sequence[Message], *, content: bool
) -> Tail:
    """What the template writes behind an assistant turn with these calls, when `new` follows it.

    A stand-in takes the place of the turn: the calls' ids and names are real, content and arguments are sentinels, so
    the cost depends on `new` alone. Raises TemplateError where the template refuses, or writes no end of the turn.
    """
    said, asked = _fresh(new)
    shown = calls if profile.parallel_calls else calls[:1]
    turn = assistant(said if content or not shown or profile.calls_need_content else "", [asked] * len(shown), shown)
    text = template.render([QUESTION, turn, *new], generation_prompt=True)
    bare = template.render([QUESTION, turn, *new])
    prompt = text[len(bare) :] if text.startswith(bare) else ""
    rest = _after(text, [asked, said])
    body = rest[: len(rest) - len(prompt)]
    close = profile.called if asked in text and profile.called else profile.said
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


def _close(template: Template, turn: Message, reply: Message, sentinel: str) -> Close:
    """What ends a turn both when nothing follows (some templates then add an end of text) and when a reply does."""
    alone = _after(template.render([QUESTION, turn]), [sentinel])
    followed = template.try_render([QUESTION, turn, reply], generation_prompt=True)
    common = alone
    if followed is not None and sentinel in followed:
        ours, theirs = template.encode(alone), template.encode(_after(followed, [sentinel]))
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
        common = template.decode([token for token, _ in pairs])
    found = template.special_in(common, last=True)
    if found is None:  # a reply changes the end: what ends the turn alone is all there is to go by
        common, found = alone, template.special_in(alone, last=True)
    if found is None:
        return Close(common, "", "")
    at = common.rindex(found[0])
    return Close(common[:at], found[0], common[at + len(found[0]) :])


def _split(template: Template, close: Close, body: str, prompt: str) -> Tail:
    written = close.lead + close.stop + close.trail
    if body.startswith(written) and close.stop:
        return Tail(close.lead, close.stop, close.trail, body[len(written) :], prompt)
    if close.stop:
        lead, stop, rest = body.partition(close.stop)
        if stop:
            trail = close.trail if rest.startswith(close.trail) else ""
            return Tail(lead, stop, trail, rest.removeprefix(trail), prompt)
    found = template.special_in(body[len(close.lead) :])
    if found is not None:
        at = body.index(found[0], len(close.lead))
        return Tail(body[:at], found[0], "", body[at + len(found[0]) :], prompt)
    if close.stop or body != close.lead:
        raise TemplateError(f"the chat template of {template.name} writes no special token that ends a turn")
    return Tail(close.lead, "", "", "", prompt)


def _stop_ids(template: Template, said: Close, called: Close | None) -> Iterable[int]:
    """Tokens that end a turn: the tokenizer's, the template's, and those the model's folder names."""
    tokenizer = template.tokenizer
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id
    for close in (said, called):
        found = template.special_in(close.stop, last=True) if close is not None else None
        if found is not None:
            yield found[1]
    if not said.stop:
        for reply in (REPLY, RESULT):
            text = template.try_render([QUESTION, assistant(SAID), reply]) or ""
            found = template.special_in(_after(text, [SAID])) if SAID in text else None
            if found is not None:
                yield found[1]
    yield from _generation_config_stops(getattr(tokenizer, "name_or_path", ""))


def _generation_config_stops(folder: str) -> list[int]:
    path = Path(folder or ".") / "generation_config.json"
    if not folder or not path.is_file():
        return []
    try:
        stops = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as exc:
        raise ConfigError(f"{path}: not a generation config ({exc}); repair it or remove it") from exc
    return [stop for stop in (stops if isinstance(stops, list) else [stops]) if isinstance(stop, int)]
