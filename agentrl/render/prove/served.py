"""Decide the source of bridges: the memo, if it is proved while the renderer is loaded, or a render of each bridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.errors import TemplateError
from agentrl.render.learn.probe import SAID
from agentrl.render.memo import Memo, MemoState
from agentrl.render.turns import Turns
from agentrl.types import Action, Message, ToolCall

MEMO = "memo"

_TEXTS = (
    "result",
    "two words",
    "",
    "  edges\n\n",
    '{"a": "\\n\\"b\\"", "c": [1, null, true]}\n',
    "<think>x</think> <tool_call> </s> [/INST] é\u2028 <b>&'1' {{ x }} {% y %}",
)
"""Texts that templates trim, quote, escape, search or mistake for syntax. For such texts a template's questions may
have other answers."""


def bridges_served(turns: Turns, *, results: bool) -> tuple[dict[str, str], MemoState]:
    """Decide for the roles "user" and, with `results`, "tool": role -> the source of bridges to its messages, "memo" or
    "render: " and the reason.

    Also returns the state of the template's memo, which is off if the memo made a wrong bridge.
    """
    state = MemoState(every=1)
    served = {"user": _served(turns, 0, state)}
    if results:
        served["tool"] = _served(turns, 1, state)
        if turns.profile.parallel_calls and served["tool"] == MEMO:
            served["tool"] = _served(turns, 2, state)
    if state.off:
        served = dict.fromkeys(served, f"render: {state.off}")
    return served, MemoState(off=state.off)


def _served(turns: Turns, calls: int, state: MemoState) -> str:
    memo, before = Memo(state), state.served
    turns = replace(turns, memo=memo)
    for number, text in enumerate(_TEXTS):
        tool_calls = [ToolCall(f"call{number:03}{i}x", "lookup", {}) for i in range(calls)]
        try:
            turns.bridge(_HISTORY, _action(tool_calls), _answer(text, tool_calls))
        except TemplateError as exc:
            return f"render: {exc}"
    return MEMO if state.served > before else f"render: {memo.reason}"


_HISTORY: Sequence[Message] = (
    {"role": "system", "content": "Instructions."},
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": SAID},
)


def _action(calls: Sequence[ToolCall]) -> Action:
    return Action("", "" if calls else "said", None, tuple(calls), "stop", None, ())


def _answer(text: str, calls: Sequence[ToolCall]) -> list[Message]:
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text * (i + 1)}
        for i, call in enumerate(calls)
    ]
    return results or [{"role": "user", "content": text}]
