"""Proof that a template can be continued: each probe is walked turn by turn and compared with the full render."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.errors import TemplateError
from agentrl.render.base import Certificate
from agentrl.render.calls import KNOWN
from agentrl.render.turns import Turns
from agentrl.types import Action, Message, ToolCall


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation in which each assistant message is a sampled turn."""

    name: str
    messages: tuple[Message, ...]
    capability: str = ""
    """What a template lacks that cannot carry this case; without a capability, it is refused."""
    says: tuple[str, ...] = ()
    """Text of messages that the template must not drop in silence."""


def _call(index: int, name: str = "lookup") -> ToolCall:
    return ToolCall(f"call0000{index}", name, {"query": f"city {index}", "more": KNOWN})


def _asks(*calls: ToolCall, content: str = "") -> Message:
    written = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def _answers(call: ToolCall, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_USER: Message = {"role": "user", "content": "What is the weather in Zürich?"}
_AGAIN: Message = {"role": "user", "content": "And tomorrow?\n"}
_SAYS: Message = {"role": "assistant", "content": "It is 18 degrees. 晴れ"}
_THOUGHT = {"reasoning_content": "zqthought"}
_ONE, _TWO = _call(0), _call(1)

CASES = (
    Case("a user message after an answer", (_USER, _SAYS, _AGAIN, _SAYS, _USER)),
    Case("a system message", (_SYSTEM, _USER, _SAYS, _AGAIN), "system", ("Be brief.",)),
    Case("a tool result after a call", (_USER, _asks(_ONE), _answers(_ONE, "r1 {}\n")), "tool_results", ("r1",)),
    Case(
        "an answer after a tool result",
        (_USER, _asks(_ONE), _answers(_ONE, "r1"), _SAYS, _AGAIN, _asks(_TWO), _answers(_TWO, "r2"), _SAYS, _USER),
        "tool_results",
    ),
    Case(
        "two calls and their results",
        (_USER, _asks(_ONE, _TWO), _answers(_ONE, "r1"), _answers(_TWO, "r2"), _SAYS, _AGAIN),
        "parallel_calls",
        ("r1", "r2"),
    ),
    Case(
        "a user message after a tool result",
        (_USER, _asks(_ONE), _answers(_ONE, "r1"), _AGAIN),
        "user_after_tool",
        ("And tomorrow?",),
    ),
    Case("a tool result without a call", (_USER, _SAYS, _answers(_ONE, "r1")), "orphan_tool", ("r1",)),
    Case(
        "a call with text beside it",
        (_USER, _asks(_ONE, content="Let me see."), _answers(_ONE, "r1")),
        "text_with_calls",
        ("Let me see.", "r1"),
    ),
    Case(
        "a call after reasoning",
        (_USER, {**_asks(_ONE), **_THOUGHT}, _answers(_ONE, "r1")),
        "thinking",
    ),
)


@dataclass(slots=True)
class _Findings:
    proved: list[str] = field(default_factory=list)
    departures: list[str] = field(default_factory=list)
    capabilities: dict[str, bool] = field(default_factory=dict)


def certify(turns: Turns) -> Certificate:
    """Walk every case. Raises TemplateError where a bridge differs from what the template writes itself."""
    started = time.perf_counter()
    found = _Findings()
    template = turns.template
    found.capabilities["calls"] = turns.profile.called is not None
    if turns.profile.called is None:
        found.departures.append("the template writes no tool calls; they are written and read as <tool_call>{json}")
    found.capabilities["tools"] = any(tool["function"]["name"] in template.render([_USER]) for tool in template.tools)
    if not found.capabilities["tools"]:
        found.departures.append("the template does not show the tools to the model: describe them in a system message")
    found.capabilities["thinking"] = _thinks(turns)
    for case in CASES:
        _certify(turns, case, found)
    return Certificate(
        level="keeps-history" if found.departures else "exact",
        template_hash=hashlib.sha256(template.source.encode()).hexdigest()[:16],
        proved=tuple(found.proved),
        departures=tuple(found.departures),
        milliseconds=(time.perf_counter() - started) * 1000,
        capabilities=found.capabilities,
    )


def _thinks(turns: Turns) -> bool:
    """Whether the template writes reasoning, and leaves the model room for it behind the generation prompt."""
    try:
        return _THOUGHT["reasoning_content"] in turns.sampled({**_SAYS, **_THOUGHT})
    except TemplateError:
        return False


def _certify(turns: Turns, case: Case, found: _Findings) -> None:
    text = turns.template.try_render(case.messages, generation_prompt=True)
    carried = text is not None and all(part in text for part in case.says)
    if case.capability:
        carried = carried and found.capabilities.get(case.capability, True)
        found.capabilities[case.capability] = carried
        if not carried:
            return
    departure = _walk(turns, case)
    if departure is None:
        found.proved.append(case.name)
    else:
        found.departures.append(departure)


def _walk(turns: Turns, case: Case) -> str | None:
    """The first departure of the case, if any. Raises TemplateError at the first bridge that is wrong."""
    template, messages, departure = turns.template, case.messages, None
    at = _next_turn(messages, 0)
    tokens = template.encode(template.render(messages[:at], generation_prompt=True))
    while at < len(messages):
        sampled = template.encode(turns.sampled(messages[at]))
        end = _next_turn(messages, at + 1)
        bridge = turns.bridge(_action(messages[at], sampled), messages[at + 1 : end]).tokens
        tokens = [*tokens, *sampled, *bridge]
        full = template.encode(template.render(messages[:end], generation_prompt=True))
        if full[-len(bridge) :] != list(bridge):
            ours, theirs = _parting(turns, bridge, full[-len(bridge) :])
            raise TemplateError(
                f"the chat template of {template.name} cannot be continued exactly: {case.name}: expected {theirs!r}, "
                f"bridged {ours!r}; use a template whose turns do not depend on what follows them"
            )
        if departure is None and tokens != full:
            ours, theirs = _parting(turns, tokens, full)
            departure = f"{case.name}: kept as sampled {ours!r} where the full render has {theirs!r}"
        at = end
    return departure


def _next_turn(messages: Sequence[Message], start: int) -> int:
    turns = (i for i in range(start, len(messages)) if messages[i]["role"] == "assistant")
    return next(turns, len(messages))


def _action(message: Message, tokens: Sequence[int]) -> Action:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return Action("", message["content"], None, calls, "stop", tokens[-1], tuple(tokens))


def _parting(turns: Turns, ours: Sequence[int], theirs: Sequence[int]) -> tuple[str, str]:
    """Both sides as text, from a little before where they part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    part = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    left, right = (turns.template.decode(side[max(0, part - 4) : part + 12]) for side in (ours, theirs))
    return left.strip("\ufffd"), right.strip("\ufffd")
