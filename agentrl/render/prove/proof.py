"""Learn a template and prove it before an episode: once without tools, and once with a tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render.base import Certificate
from agentrl.render.cache import Cache, key_of
from agentrl.render.context import Context
from agentrl.render.formats.conventions import conventional
from agentrl.render.learn.calls import derive, known_calls
from agentrl.render.learn.close import behind
from agentrl.render.learn.forms import detect_message_form, with_reasoning
from agentrl.render.learn.frames import learn_frames
from agentrl.render.learn.probe import ASKED, QUESTION, SAID, TOOL, assistant
from agentrl.render.learn.profile import Profile
from agentrl.render.memo import MemoState, Watch
from agentrl.render.moment import PROBED, at_moment
from agentrl.render.prove.certify import certify
from agentrl.render.prove.dependence import ROLES as DEPENDS
from agentrl.render.prove.reading import read_back
from agentrl.render.prove.served import MEMO, bridges_served
from agentrl.render.read.calls import Block
from agentrl.render.read.lexer import Lexer
from agentrl.render.read.parse import Parser
from agentrl.render.template import Template
from agentrl.render.turns import Turns
from agentrl.types import Message

_KEPT = 64


@dataclass(frozen=True, slots=True)
class Proof:
    """A template that is ready for use: the learned facts and the certificate."""

    turns: Turns
    parser: Parser
    certificate: Certificate
    refuses_tools: str = ""
    """The reason why the template cannot be used with tools. Empty if it can."""
    memo: MemoState = field(default_factory=MemoState)
    watch: Watch = field(default_factory=Watch)


_WITH_TOOLS: Cache[Proof | TemplateError] = Cache(_KEPT)
_WITHOUT: Cache[Proof] = Cache(_KEPT)


def proof_of(template: Template, tokenizer: str) -> Proof:
    """Prove the template for its use: with tools if it has any. `tokenizer` is a key that identifies the tokenizer.

    For a template without tools, the certificate covers the use with tools, too. Raises TemplateError if the template
    cannot be used.
    """
    key = key_of(tokenizer, template.source, template.kwargs)
    with_tools = _WITH_TOOLS.get(key, lambda: _tried(template.bind([TOOL])))
    if not template.tools:
        return _WITHOUT.get(key, lambda: _without_tools(template, with_tools))
    if isinstance(with_tools, TemplateError):
        raise with_tools
    return with_tools


def _tried(template: Template) -> Proof | TemplateError:
    try:
        return prove(template)
    except TemplateError as exc:
        return exc


def _without_tools(template: Template, with_tools: Proof | TemplateError) -> Proof:
    """The proof without tools. Its certificate includes the findings with tools."""
    if isinstance(with_tools, TemplateError):
        proof = prove(template, _NO_CALLS, calls=False)
        lacking = dict.fromkeys(_OF_CALLS, False)
        certificate = replace(
            proof.certificate,
            level="keeps-history",
            departures=(*proof.certificate.departures, f"it serves without tools only: {with_tools}"),
            capabilities={**proof.certificate.capabilities, **lacking},
        )
        return replace(proof, certificate=certificate, refuses_tools=str(with_tools))
    proof = prove(
        template, _NO_CALLS if with_tools.refuses_tools else _Learnt(with_tools.parser.block, with_tools.turns.context)
    )
    return replace(
        proof, certificate=_both(proof.certificate, with_tools.certificate), refuses_tools=with_tools.refuses_tools
    )


def _both(without: Certificate, with_tools: Certificate) -> Certificate:
    """The certificate of two proofs: the cases that both prove without departures, and the departures of both."""
    without_only = [departure for departure in without.departures if departure not in with_tools.departures]
    departures = (*with_tools.departures, *(f"without tools: {departure}" for departure in without_only))
    departed = {departure.partition(":")[0] for departure in without.departures}
    return replace(
        with_tools,
        level="keeps-history" if departures else "exact",
        proved=tuple(case for case in with_tools.proved if case not in departed),
        depends=tuple(name for name in DEPENDS if name in {*with_tools.depends, *without.depends}),
        departures=departures,
        milliseconds=without.milliseconds + with_tools.milliseconds,
    )


@dataclass(frozen=True, slots=True)
class _Learnt:
    """The format of calls, learned from the template with tools."""

    block: Block | None
    context: Context


_NO_CALLS = _Learnt(None, Context())
_OF_CALLS = ("calls", "tools", "parallel_calls", "tool_results", "orphan_tool", "text_with_calls", "user_after_tool")
"""Capabilities that a template without calls lacks."""


def prove(template: Template, learnt: _Learnt | None = None, *, calls: bool = True) -> Proof:
    """Learn the template, and prove the learned facts. Without `calls`, turns with calls are left out."""
    with at_moment(PROBED):
        return _proved(detect_message_form(template) if calls else with_reasoning(template), learnt, calls=calls)


def _proved(template: Template, learnt: _Learnt | None, *, calls: bool) -> Proof:
    turns = Turns(template, Profile.of(template, calls=calls), learnt.context if learnt is not None else Context())
    profile = turns.profile
    block = learnt.block if learnt is not None else _block(turns)
    frames = learn_frames(template, profile, block, turns.sampled)
    parser = Parser(template, block, profile.thinking, profile.stop_token_ids, frames, _call_ends(turns))
    reading = read_back(turns, parser)
    if block is None:
        reading.calls = reading.calls or f"no format of calls was found in {_unread(turns)[:200]!r}"
    turns, certificate = certify(turns, reading, calls=calls)
    alone = replace(turns, context=Context()) if turns.context.whole else turns
    served, memo = bridges_served(alone, results=certificate.capabilities.get("tool_results", False))
    if turns.context.whole:
        why = f"render: the text depends on earlier {' and '.join(certificate.depends)}"
        served = {answer: how if how != MEMO else why for answer, how in served.items()}
    certificate = replace(certificate, bridges=served)
    if reading.answers:
        raise TemplateError(f"the chat template of {template.name} cannot be read back: {reading.answers}")
    refused = f"its tool calls cannot be read back: {reading.calls}" if reading.calls else ""
    return Proof(turns, parser, certificate, refused, memo)


def _call_ends(turns: Turns) -> frozenset[int]:
    """The stop tokens that close a call and never an answer, such as gpt-oss' `<|call|>`."""
    template, profile = turns.template, turns.profile
    if profile.called is None:
        return frozenset()
    turn = assistant(SAID if profile.calls_need_content else "", [ASKED])
    called = behind(template.render([QUESTION, turn]), [ASKED])
    answered = behind(template.render([QUESTION, assistant(SAID)]), [SAID]) + profile.answer.stop
    answered += profile.answer.sampled_stop
    texts = {token: template.decode([token]) for token in profile.stop_token_ids}
    return frozenset(token for token, text in texts.items() if text in called and text not in answered)


def _block(turns: Turns) -> Block | None:
    """Learn the template's format of calls. None if calls cannot be read back."""
    profile = turns.profile
    if profile.called is None:
        return conventional(turns.template)
    stop = profile.called.sampled_stop

    def sampled(message: Message) -> str:
        return profile.thinking.behind(turns.sampled(message).removesuffix(stop))

    bare = turns.template.render([QUESTION])
    prompt = turns.template.render([QUESTION], generation_prompt=True).removeprefix(bare)
    content = SAID if profile.calls_need_content else ""
    block = derive(turns.template, sampled, profile.parallel_calls, content, prompt)
    turn = _text_then_call(turns)
    if block is None or not turn:
        return block
    opened = None if block.lead else block.find(Lexer(turns.template, block.markers)(turns.template.encode(turn)), 0)
    if opened is not None and opened < turn.index(SAID):  # the content is within the opening
        block = derive(turns.template, sampled, profile.parallel_calls, SAID, prompt) or block
    return replace(block, behind_text=True)


def _text_then_call(turns: Turns) -> str:
    """The text of a turn with content before its call. Empty if the template writes no such turn."""
    try:
        turn = turns.sampled(assistant(SAID, [ASKED]))
    except TemplateError:
        return ""
    return turn if SAID in turn.partition(ASKED)[0] else ""


def _unread(turns: Turns) -> str:
    turn = known_calls(1, SAID if turns.profile.calls_need_content else "", turns.template.forms)[0]
    try:
        return turns.sampled(turn.message)
    except TemplateError as exc:
        return str(exc)


def hint_of(template: Template) -> str:
    """A hint for the user how to make the template write its tools: the smallest set of `_REMEDIES` that helps. Empty
    if no remedy helps."""
    for count in range(1, len(_REMEDIES) + 1):
        for remedies in combinations(_REMEDIES, count):
            tools = [_repaired(tool, remedies) for tool in template.tools]
            if template.bind(tools).try_render([QUESTION]) is not None:
                return f"; it wants {' and '.join(remedy.wants for remedy in remedies)}"
    return ""


@dataclass(frozen=True, slots=True)
class _Remedy:
    """Schema keys that a template may require, although schemas are valid without the keys."""

    wants: str
    add: Callable[[dict[str, Any]], dict[str, Any]]
    """The keys to add to a schema. The parts of the schema have the keys already."""


def _additional(schema: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": {"type": "string"}} if schema.get("type") == "object" else {}


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    if "name" in schema and "parameters" in schema:
        return {"description": "What it does."}
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    described = {
        key: {"description": "What it is.", **part} if isinstance(part, dict) else part
        for key, part in properties.items()
    }
    return {"properties": described}


def _listed(schema: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"properties": {}, "required": []}
    return {key: value for key, value in empty.items() if key not in schema} if schema.get("type") == "object" else {}


_REMEDIES = (
    _Remedy('"additionalProperties" in every parameter that is an object', _additional),
    _Remedy('a "description" of every tool and parameter', _described),
    _Remedy('"properties" and "required" in every object', _listed),
)


def _repaired(schema: Any, remedies: Sequence[_Remedy]) -> Any:
    """The schema, and every schema within, with the keys of the remedies."""
    if isinstance(schema, list | tuple):
        return [_repaired(item, remedies) for item in schema]
    if not isinstance(schema, dict):
        return schema
    repaired = {key: _repaired(value, remedies) for key, value in schema.items()}
    for remedy in remedies:
        added = remedy.add(repaired)
        repaired |= {key: value for key, value in added.items() if key == "properties" or key not in repaired}
    return repaired
