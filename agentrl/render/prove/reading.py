"""Whether what a template writes is read back: what a turn says, thinks and asks, each as it was given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.errors import TemplateError
from agentrl.render.learn.calls import schemas
from agentrl.render.learn.probe import QUESTION
from agentrl.render.prove.cases import READ, ask_arguments
from agentrl.render.read.parse import Parser
from agentrl.render.template import Forms
from agentrl.render.turns import Turns
from agentrl.types import Action, Message


@dataclass(slots=True)
class Reading:
    """What of the template's own turns cannot be read."""

    answers: str = ""
    """Why the template cannot be used at all: an answer or a thought comes back as something else."""
    calls: str = ""
    """Why tools cannot be offered; empty if they can."""
    beside_text: str = ""
    """Why a call is not read where the turn says something too."""


def read_back(turns: Turns, parser: Parser) -> Reading:
    """Read every turn of `READ`."""
    found = Reading()
    schema = {"parameters": {"type": "object", "properties": schemas(ask_arguments())}}
    parser = parser.bind([{"name": name, **schema} for name in ("lookup", "seek_2")])
    thinking = turns.profile.thinking.left_open(turns.template.render([QUESTION], generation_prompt=True)[-2000:])
    for message in (_carried(message, turns.template.forms) for message in READ):
        if message.get("tool_calls") and turns.profile.called is None:
            continue
        if len(message.get("tool_calls", ())) > 1 and not turns.profile.parallel_calls:
            continue
        if (message.get("tool_calls") and found.calls) or (wrong := _wrong(turns, parser, message, thinking)) is None:
            continue
        if not message.get("tool_calls") and parser.block is not None:
            alone = _wrong(turns, parser.without_calls(), message, thinking)
            if alone is None:  # what it says is taken for a call
                found.calls = found.calls or wrong
                continue
        if not message.get("tool_calls"):
            found.answers = found.answers or wrong
        elif message["content"]:
            found.beside_text = wrong
        else:
            found.calls = wrong
    return found


def _carried(message: Message, forms: Forms) -> Message:
    """The message, its calls with the arguments that the template can write."""
    if not (forms.no_nulls and message.get("tool_calls")):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    said = [{**function, "arguments": forms.said(function["arguments"])} for function in functions]
    calls = [{**call, "function": function} for call, function in zip(message["tool_calls"], said, strict=True)]
    return {**message, "tool_calls": calls}


def _wrong(turns: Turns, parser: Parser, message: Message, thinking: bool) -> str | None:
    """How a turn comes back as something else than it was; None if it does not, or cannot be written at all."""
    try:
        text = turns.sampled(message)
    except TemplateError:
        return None  # certification walks the same turn, and says so where it matters
    tokens = turns.template.encode(text)
    inside = next((token for token in tokens[:-1] if token in turns.profile.stop_token_ids), None)
    if inside is not None:
        return f"the stop token {turns.template.decode([inside])!r} stands inside the turn {text[:200]!r}"
    action = parser(tokens, "stop", tokens[-1], thinking)
    return next((f"{what}, in {text[:200]!r}" for what in _differences(turns, message, action, text)), None)


def _differences(turns: Turns, message: Message, action: Action, text: str) -> Iterator[str]:
    content, thought = message["content"].strip(), message.get("reasoning_content")
    if not message.get("tool_calls") and "".join(content.split()) not in "".join(text.split()):
        yield f"the template leaves out a part of the answer {content[:80]!r}"
    asked = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    read = [(call.name, call.arguments) if call.error is None else (call.name, call.error) for call in action.calls]
    if read != asked:
        yield f"the calls {asked!r} are read as {read!r}"
    if content in text and action.content != content:
        yield f"the answer {content[:80]!r} is read as {action.content[:80]!r}"
    if not content and action.content:
        yield f"{action.content[:80]!r} is read where nothing was said"
    if thought and thought in text and action.reasoning != thought:
        yield f"the thought {thought!r} is read as {action.reasoning!r}"
    ids = [call["id"] for call in message.get("tool_calls", ())]
    made = [call.id for call in action.calls]
    if len(set(made)) < len(made) or any(
        ours in ids and ours != theirs for ours, theirs in zip(made, ids, strict=False)
    ):
        yield f"calls with the ids {ids} are read with the ids {made}"
