"""Check that the parser reads the template's own turns back: content, thoughts and arguments, each unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import TemplateError
from agentrl.render.learn.probe import QUESTION
from agentrl.render.prove.cases import FREELY, READ, ask_parameters
from agentrl.render.prove.freely import variations
from agentrl.render.read.parse import Parser
from agentrl.render.template import Forms
from agentrl.render.turns import Turns
from agentrl.types import Action, Message


@dataclass(slots=True)
class ReadingProblems:
    """The problems in reading the template's own turns. "" stands for no problem."""

    answers: str = ""
    """An answer or a thought is misread: the template cannot be used."""
    calls: str = ""
    """A call is misread: the template cannot be used with tools."""
    beside_text: str = ""
    """A call is not read if the turn also has content."""
    freely: str = ""
    """A call is not read in a variation that models write, although the template's own form is read."""


def read_back(turns: Turns, parser: Parser) -> ReadingProblems:
    """Read every turn of `READ`, and return the problems."""
    problems = ReadingProblems()
    parser = parser.bind([{"name": name, "parameters": ask_parameters()} for name in ("lookup", "seek_2")])
    thinking = turns.profile.thinking.left_open(turns.template.render([QUESTION], generation_prompt=True)[-2000:])
    for message in (_carried(message, turns.template.forms) for message in READ):
        if not message.get("tool_calls"):
            _read_answer(problems, turns, parser, message, thinking)
        elif _writes(turns, message) and not problems.calls and (wrong := _wrong(turns, parser, message, thinking)):
            if message["content"]:
                problems.beside_text = wrong
            else:
                problems.calls = wrong
    if not problems.calls and _writes(turns, FREELY):
        _read_freely(problems, turns, parser, _carried(FREELY, turns.template.forms), thinking)
    return problems


def _read_freely(problems: ReadingProblems, turns: Turns, parser: Parser, message: Message, thinking: bool) -> None:
    """Read the variations of a call. If one is read as a different call, the template cannot be used with tools."""
    try:
        text = turns.sampled(message)
    except TemplateError:
        return
    for variation in variations(parser.block, message, text) if parser.block is not None else ():
        tokens = turns.template.encode(variation.text)
        action = parser(tokens, "stop", tokens[-1], thinking)
        if not variation.sound and action.calls and all(call.error for call in action.calls):
            continue
        if wrong := _misread_calls(message, action, variation.text):
            wrong = f"{wrong}, {variation.change}, in {variation.text[:200]!r}"
            if variation.sound:
                problems.freely = problems.freely or wrong
            else:
                problems.calls = wrong


def _read_answer(problems: ReadingProblems, turns: Turns, parser: Parser, message: Message, thinking: bool) -> None:
    wrong = _wrong(turns, parser, message, thinking)
    if wrong is None:
        return
    if parser.block is not None and _wrong(turns, parser.without_calls(), message, thinking) is None:
        problems.calls = problems.calls or wrong  # the content is taken for a call
    else:
        problems.answers = problems.answers or wrong


def _writes(turns: Turns, message: Message) -> bool:
    """Whether the template writes these calls."""
    return turns.profile.called is not None and (len(message["tool_calls"]) == 1 or turns.profile.parallel_calls)


def _carried(message: Message, forms: Forms) -> Message:
    """The message with only the arguments that the template can write."""
    if not (forms.no_nulls and message.get("tool_calls")):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    reduced = [{**function, "arguments": forms.writable(function["arguments"])} for function in functions]
    calls = [{**call, "function": function} for call, function in zip(message["tool_calls"], reduced, strict=True)]
    return {**message, "tool_calls": calls}


def _wrong(turns: Turns, parser: Parser, message: Message, thinking: bool) -> str | None:
    """Write a turn and read it back. Returns the difference; None without a difference, or if the template cannot write
    the turn."""
    try:
        text = turns.sampled(message)
    except TemplateError:
        return None  # certification walks the same turn, and reports it where it matters
    tokens = turns.template.encode(text)
    inside = next((token for token in tokens[:-1] if token in turns.profile.stop_token_ids), None)
    if inside is not None:
        return f"the stop token {turns.template.decode([inside])!r} is inside the turn {text[:200]!r}"
    action = parser(tokens, "stop", tokens[-1], thinking)
    for difference in (_left_out, _misread_calls, _misread_answer, _misread_thought, _misread_ids):
        if problem := difference(message, action, text):
            return f"{problem}, in {text[:200]!r}"
    return None


def _left_out(message: Message, action: Action, text: str) -> str | None:
    content = message["content"].strip()
    if not message.get("tool_calls") and "".join(content.split()) not in "".join(text.split()):
        return f"the template leaves out a part of the answer {content[:80]!r}"
    return None


def _misread_calls(message: Message, action: Action, text: str) -> str | None:
    expected = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    read = [(call.name, call.arguments if call.error is None else call.error) for call in action.calls]
    return f"the calls {expected!r} are read as {read!r}" if read != expected else None


def _misread_answer(message: Message, action: Action, text: str) -> str | None:
    content = message["content"].strip()
    if content in text and action.content != content:
        return f"the answer {content[:80]!r} is read as {action.content[:80]!r}"
    return None


def _misread_thought(message: Message, action: Action, text: str) -> str | None:
    thought = message.get("reasoning_content")
    if thought and thought in text and action.reasoning != thought:
        return f"the thought {thought!r} is read as {action.reasoning!r}"
    return None


def _misread_ids(message: Message, action: Action, text: str) -> str | None:
    """A description of wrongly read ids. An id in the template's text must not change, and no two calls may share an
    id."""
    ids = [call["id"] for call in message.get("tool_calls", ())]
    actual = [call.id for call in action.calls]
    misplaced = any(ours in ids and ours != theirs for ours, theirs in zip(actual, ids, strict=False))
    if misplaced or len(set(actual)) < len(actual):
        return f"calls with the ids {ids} are read with the ids {actual}"
    return None
