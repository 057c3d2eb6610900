"""The conversations with which a template is certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.render.learn.calls import KNOWN, schemas
from agentrl.types import JSON, Message, ToolCall


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation in which each assistant message is a sampled turn."""

    name: str
    messages: tuple[Message, ...]
    capability: str = ""
    """The capability that a template lacks if it fails this case. Empty: a template that fails is refused."""
    says: tuple[str, ...] = ()
    """Texts of the messages that must appear in the rendered text."""
    needs: tuple[str, ...] = ()
    """Capabilities that other cases prove. For a template without these capabilities, this case is left out."""

    @property
    def calls(self) -> bool:
        """Whether the case contains a call or a result."""
        return any(message.get("tool_calls") or message["role"] == "tool" for message in self.messages)


def _call(index: int, name: str = "lookup") -> ToolCall:
    return ToolCall(f"q{index}7wd0x2k", name, {"query": f"city {index}", "more": KNOWN})


def _asks(*calls: ToolCall, content: str = "", thought: str = "") -> Message:
    tool_calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    return {**message, "reasoning_content": thought} if thought else message


def _answers(call: ToolCall, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _says(content: str) -> Message:
    return {"role": "assistant", "content": content}


THOUGHT = "zqthought"
_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_USER = _user("What is the weather in Zürich?")
_AGAIN = _user("And tomorrow?\n")
SAYS = _says("It is 18 degrees. 晴れ")
_LONG = _says(
    "# Yes!\n\n1. First, `x = {}`;\n2. then\tthe rest?\n\n" + "All is well, and all will be well. " * 12 + "Done"
)
_SHORT = _says("No")
_WIND = " degrees, a light wind from the west, and 30 % rain"
_ONE, _TWO, _THREE, _FOUR = (_call(i) for i in range(4))

CASES = (
    Case("a user message after an answer", (_USER, SAYS, _AGAIN, _LONG, _user("Why so?"), _SHORT, _user("Bye"))),
    Case(
        "a system message",
        (_SYSTEM, _USER, SAYS, _AGAIN, _SHORT, _user("Bye")),
        "system",
        ("Be brief.",),
    ),
    Case("a tool result after a call", (_USER, _asks(_ONE), _answers(_ONE, "r1 {}\n")), "tool_results", ("r1",)),
    Case(
        "an answer after a tool result",
        (
            _USER,
            _asks(_ONE),
            _answers(_ONE, "r1" + _WIND),
            SAYS,
            _AGAIN,
            _asks(_TWO),
            _answers(_TWO, "r2" + _WIND),
            _LONG,
            _user("Bye"),
        ),
        "tool_results",
    ),
    Case(
        "calls one after the other",
        (
            _USER,
            *(m for i, c in enumerate((_ONE, _TWO, _THREE)) for m in (_asks(c), _answers(c, f"s{i}{_WIND}"))),
            _SHORT,
            _AGAIN,
        ),
        "tool_results",
    ),
    Case(
        "two calls and their results",
        (_USER, _asks(_ONE, _TWO), _answers(_ONE, "r1" + _WIND), _answers(_TWO, "r2" + _WIND), SAYS, _AGAIN),
        "parallel_calls",
        ("r1", "r2"),
    ),
    Case(
        "parallel calls again",
        (
            *(_USER, _asks(_ONE, _TWO), _answers(_ONE, "r1" + _WIND), _answers(_TWO, "r2" + _WIND)),
            *(_asks(_THREE, _FOUR), _answers(_THREE, "r3"), _answers(_FOUR, "r4"), SAYS, _AGAIN),
        ),
        "parallel_calls",
    ),
    Case(
        "a user message after a tool result",
        (_USER, _asks(_ONE), _answers(_ONE, "r1" + _WIND), _AGAIN, SAYS, _user("Bye")),
        "user_after_tool",
        ("And tomorrow?",),
    ),
    Case(
        "a system message, and calls",
        (
            *(_SYSTEM, _USER, _asks(_ONE), _answers(_ONE, "r1" + _WIND), SAYS, _AGAIN),
            *(_asks(_TWO), _answers(_TWO, "r2" + _WIND), _asks(_THREE), _answers(_THREE, "r3" + _WIND)),
            *(_LONG, _user("Why so?"), _SHORT, _user("Bye")),
        ),
        needs=("system", "tool_results"),
    ),
    Case(
        "a system message, and calls after answers",
        (
            *(_SYSTEM, _USER, _SHORT, _AGAIN, SAYS, _user("Why so?")),
            *(_asks(_ONE), _answers(_ONE, "r1" + _WIND), _SHORT, _user("Bye")),
        ),
        needs=("system", "tool_results"),
    ),
    Case("a tool result without a call", (_USER, SAYS, _answers(_ONE, "r1" + _WIND)), "orphan_tool", ("r1",)),
    Case(
        "a call with text beside it",
        (_USER, _asks(_ONE, content="Let me see."), _answers(_ONE, "r1" + _WIND), SAYS, _AGAIN),
        "text_with_calls",
        ("Let me see.", "r1"),
    ),
    Case(
        "a call after reasoning",
        (_USER, _asks(_ONE, thought=THOUGHT), _answers(_ONE, "r1" + _WIND)),
        "thinking",
    ),
    Case(
        "answers after reasoning",
        (
            _USER,
            {**SAYS, "reasoning_content": THOUGHT},
            _AGAIN,
            {**_SHORT, "reasoning_content": "zqmore"},
            _user("Bye"),
        ),
        "thinking",
    ),
)


_STRING, _NULL = {"type": "string"}, {"type": "null"}
_UNIONS: Mapping[str, tuple[JSON, JSON]] = {
    "maybe": ("0", {"anyOf": [_STRING, _NULL]}),
    "either": ("true", {"type": ["string", "null"]}),
    "gone": (None, {"anyOf": [_STRING, _NULL]}),
    "listed": ("12", {"enum": ["12", "x"]}),
    "named": ("[1]", {"$ref": "#/$defs/Text"}),
    "said": ("1.50", {}),
}
"""Argument -> a text that looks like a value of another type, and the schema of the argument."""


def ask_parameters() -> dict[str, JSON]:
    """A JSON schema with all arguments of the calls in the cases."""
    plain = schemas({**_ONE.arguments, "i": 0, "kind": "text"})
    unions = {key: schema for key, (_, schema) in _UNIONS.items()}
    return {"type": "object", "properties": {**plain, **unions}, "$defs": {"Text": _STRING}}


_SEEK = ToolCall("z5f1mq8s4", "seek_2", {"kind": "12", "i": 3})
_UNION = ToolCall("v8b2nc6t1", "lookup", {key: value for key, (value, _) in _UNIONS.items()})
FREELY = _asks(_ONE)
"""A turn whose call must also be read in the variations that models write (`freely`)."""
READ: tuple[Message, ...] = (
    _asks(_ONE),
    _asks(_SEEK),
    _asks(_UNION),
    _asks(_ONE, _SEEK),
    _asks(_ONE, _TWO),
    _asks(_ONE, thought=THOUGHT),
    _asks(_ONE, content="Let me see."),
    SAYS,
    _LONG,
    {**SAYS, "reasoning_content": "First one thing.\n\nThen another."},
)
"""Turns that the parser must read back unchanged."""
