"""Conversations for the checker; none of them is among those that certification itself walks."""

from __future__ import annotations

from typing import Any

from tests.render.checker import Conversation

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a seat on a train.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "The station to go to."},
                    "seats": {"type": "integer", "description": "How many."},
                    "more": {"type": "object", "description": "More."},
                    "quote": {"type": "string", "description": "What she said."},
                    "empty": {"type": "object", "description": "Nothing."},
                },
                "required": ["place"],
            },
        },
    }
    for name in ("book", "cancel")
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def asks(*ids: str, text: str = "", name: str = "book", **arguments: Any) -> dict[str, Any]:
    """A turn with one call for each id; the ids are also the arguments, so that each call can be told apart."""
    calls = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": {"place": i, **arguments}}} for i in ids
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def gives(call_id: str, text: str, name: str = "book") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": text}


# Nine letters and digits: the strictest form of an id that a template asks for.
A, B, C, D = "oslo1aaaa", "bergen2bb", "moss3cccc", "voss4dddd"
HARD = {"more": {"x": [1, 2.5, None, True, {"y": "{}"}]}, "quote": 'she said "no"\n\\ twice', "empty": {}}

PROBES = (
    Conversation("three answers", (user("alpha?"), says("one"), user("beta?"), says("two"), user("gamma?"))),
    Conversation(
        "spaces and newlines at the edges of what users say",
        (user("  alpha\n"), says("A list:\n\n- one\n- two"), user("\n\nbeta  "), says("done 晴れ 🚆"), user("gamma\t")),
    ),
    Conversation(
        "a system message and code",
        ({"role": "system", "content": "Answer with code.  "}, user("alpha"), says("```py\nx = {}\n```"), user("beta")),
        ("system",),
    ),
    Conversation(
        "a chain of two calls, then an answer and a further question",
        (user("go"), asks(A), gives(A, "full"), asks(B, seats=2), gives(B, "booked"), says("Booked."), user("thanks")),
        ("tool_results",),
    ),
    Conversation(
        "calls in three rounds of questions",
        (
            *(user("first"), asks(A), gives(A, "ra"), says("one.")),
            *(user("second"), asks(B), gives(B, "rb"), says("two.")),
            *(user("third"), asks(C), gives(C, "rc"), says("three."), user("fourth")),
        ),
        ("tool_results",),
    ),
    Conversation(
        "three parallel calls, then two more",
        (
            *(user("all"), asks(A, B, C), gives(A, "ra"), gives(B, "rb"), gives(C, "rc")),
            *(asks(C, D), gives(C, "again"), gives(D, "rd"), says("done"), user("thanks")),
        ),
        ("tool_results", "parallel_calls"),
    ),
    Conversation(
        "equal results of parallel calls to two tools",
        (
            user("both"),
            {**asks(A, B), "tool_calls": [*asks(A)["tool_calls"], *asks(B, name="cancel")["tool_calls"]]},
            *(gives(A, "ok"), gives(B, "ok", "cancel"), says("done"), user("thanks")),
        ),
        ("tool_results", "parallel_calls"),
    ),
    Conversation(
        "arguments of every kind, results that look like JSON and markup",
        (
            *(
                user("go"),
                asks(A, seats=3, **HARD),
                gives(A, '{"ok": [true, null], "html": "<b>x</b>"}\n'),
                says("fine"),
            ),
            *(user("and"), asks(B), gives(B, ""), says("empty"), user("thanks")),
        ),
        ("tool_results",),
    ),
    Conversation(
        "text before a call",
        (user("go"), asks(A, text="Let me book that."), gives(A, "booked"), says("Booked."), user("thanks")),
        ("tool_results", "text_with_calls"),
    ),
    Conversation(
        "thoughts before calls and answers",
        (
            *(user("go"), {**asks(A), "reasoning_content": "First I book."}, gives(A, "booked")),
            *(says("Booked.", reasoning_content="It worked."), user("more"), says("No.", reasoning_content="Why?")),
            user("thanks"),
        ),
        ("tool_results", "thinking"),
    ),
    Conversation(
        "a user speaks right after a tool result",
        (user("go"), asks(A), gives(A, "booked"), user("wait"), says("Waiting."), user("thanks")),
        ("tool_results", "user_after_tool"),
    ),
    Conversation(
        "a tool result that no call asked for",
        (user("go"), says("I shall wait."), gives(A, "unasked"), says("Oh."), user("thanks")),
        ("tool_results", "orphan_tool"),
    ),
)
