"""From a sampled turn to the reply that a client gets."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.gateway.request import Entry, Reply, ReplyCall, Usage
from agentrl.gateway.session.matching import canonical
from agentrl.gateway.session.tree import Node
from agentrl.types import Action


def reply_of(node: Node, action: Action, stop: Sequence[str]) -> tuple[Reply, dict[str, str]]:
    """The reply of a turn that is whole, and for each id on the wire that of the call in the action.

    Calls that could not be read are told as text. `stop` holds the client's own stop strings.
    """
    readable = [call for call in action.calls if call.error is None]
    ids = {f"call_{node.id}_{i}": call.id for i, call in enumerate(readable)}
    calls = tuple(ReplyCall(wire, call.name, call.arguments) for wire, call in zip(ids, readable, strict=True))
    unreadable = [call.raw for call in action.calls if call.error is not None]
    matched = action.matched if isinstance(action.matched, str) and action.matched in stop else None
    content = action.content if matched is None else action.content.removesuffix(matched.rstrip())
    turn = node.turn.turns[-1]
    prompt = node.prompt.length
    return Reply(
        node.id,
        f"r_{node.id}",
        "\n".join(filter(None, [content, *unreadable])),
        action.reasoning,
        calls,
        "length" if action.finish_reason == "length" else "calls" if calls else "stop_sequence" if matched else "end",
        matched,
        Usage(prompt, min(turn.cached_tokens, prompt), turn.sampled_tokens),
    ), ids


def shown(entry: Entry) -> str:
    """An assistant's entry as one text."""
    thought = [] if entry.reasoning is None else [f"<think>{entry.reasoning}</think>"]
    calls = [f"{call.name}({canonical(call.arguments)})" for call in entry.calls]
    return "\n".join([*thought, *([entry.text] if entry.text else []), *calls])
