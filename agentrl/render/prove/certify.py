"""Certification, the proof that a template can be continued: each case is played turn by turn, and compared with the
full render."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from agentrl.errors import TemplateError
from agentrl.render.base import Certificate
from agentrl.render.context import CONTEXTS
from agentrl.render.formats.conventions import convention_of
from agentrl.render.moment import ANOTHER_DAY, at_moment
from agentrl.render.prove.cases import CASES, SAYS, THOUGHT, Case
from agentrl.render.prove.dependence import ROLES as DEPENDS
from agentrl.render.prove.dependence import dependence_of
from agentrl.render.prove.reading import ReadingProblems
from agentrl.render.prove.roles import results_matched, roles_carried
from agentrl.render.read.thinking import shared
from agentrl.render.template import Template
from agentrl.render.turns import Turns
from agentrl.types import Action, Message, ToolCall


class _WrongError(TemplateError):
    """A bridge differs from the full render. `case` is the name of the conversation."""

    def __init__(self, case: str, message: str) -> None:
        super().__init__(message)
        self.case = case


@dataclass(slots=True)
class _Renders:
    """A cache of the template's own renders, which are the same for all contexts of bridges."""

    turns: Turns
    _full: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _sampled: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def full(self, case: Case, end: int) -> list[int]:
        """The tokens of the first `end` messages of a case, and of the next generation prompt."""
        if (case.name, end) not in self._full:
            template = self.turns.template
            text = template.render(case.messages[:end], generation_prompt=True)
            self._full[case.name, end] = template.encode(text)
        return self._full[case.name, end]

    def sampled(self, case: Case, index: int) -> list[int]:
        """The tokens of the turn at `index`, as a model would sample the turn."""
        if (case.name, index) not in self._sampled:
            self._sampled[case.name, index] = self.turns.template.encode(self.turns.sampled(case.messages[index]))
        return self._sampled[case.name, index]


@dataclass(slots=True)
class _Findings:
    proved: list[str] = field(default_factory=list)
    departures: list[str] = field(default_factory=list)
    capabilities: dict[str, bool] = field(default_factory=dict)


def certify(turns: Turns, reading: ReadingProblems, *, calls: bool = True) -> tuple[Turns, Certificate]:
    """Play every case, and find the smallest context with which all bridges are right. Without `calls`, play only cases
    without calls.

    Raises TemplateError if bridges differ from the template's own text with every context.
    """
    turns, certificate = _certified(turns, reading, calls=calls)
    dependence = dependence_of(turns, certificate.capabilities)
    if dependence.context != turns.context:
        turns, certificate = _certified(replace(turns, context=dependence.context), reading, calls=calls)
        if turns.context != dependence.context:
            raise TemplateError(
                f"the chat template of {turns.template.name} cannot be continued exactly: the text after a turn "
                f"depends on earlier {' and '.join(sorted(dependence.on))}; use another template"
            )
    on = tuple(name for name in DEPENDS if name in dependence.on)
    results = results_matched(turns) if certificate.capabilities.get("tool_results", False) else ""
    return turns, replace(certificate, depends=on, results=results)


def _certified(turns: Turns, reading: ReadingProblems, *, calls: bool) -> tuple[Turns, Certificate]:
    started = time.perf_counter()
    failure: TemplateError | None = None
    renders, last = _Renders(turns), ""
    cases = [case for case in CASES if calls or not case.calls]
    for context in dict.fromkeys((turns.context, *CONTEXTS)):
        turns = replace(turns, context=context)
        try:
            for case in cases:  # first the case that failed with the last context
                if case.name == last:
                    _certify(turns, case, _Findings(), renders)
            findings = _walked(turns, reading, renders, cases)
        except TemplateError as exc:
            failure, last = failure or exc, getattr(exc, "case", last)
            continue
        return turns, Certificate(
            level="keeps-history" if findings.departures else "exact",
            template_hash=hashlib.sha256(turns.template.source.encode()).hexdigest()[:16],
            proved=tuple(findings.proved),
            departures=tuple(findings.departures),
            milliseconds=(time.perf_counter() - started) * 1000,
            template=turns.template.name,
            capabilities=findings.capabilities,
        )
    assert failure is not None
    raise failure


def _walked(turns: Turns, reading: ReadingProblems, renders: _Renders, cases: Sequence[Case]) -> _Findings:
    findings = _Findings()
    template, profile = turns.template, turns.profile
    findings.capabilities["calls"] = profile.called is not None and not reading.calls
    question = CASES[0].messages[:1]
    shows_tools = any(tool["function"]["name"] in template.render(question) for tool in template.tools)
    findings.capabilities["tools"] = shows_tools
    findings.capabilities["thinking"] = _thinks(template)
    findings.capabilities["parallel_calls"] = profile.parallel_calls or profile.called is None
    findings.capabilities["text_with_calls"] = not profile.content_after_calls and not reading.beside_text
    findings.departures += _remarks(turns, reading, shows_tools)
    for case in cases:
        _certify(turns, case, findings, renders)
    findings.capabilities |= roles_carried(template, results=findings.capabilities.get("tool_results", False))
    return findings


def _remarks(turns: Turns, reading: ReadingProblems, shows_tools: bool) -> Iterator[str]:
    """Capabilities and remarks that need no conversation."""
    profile = turns.profile
    if turns.template.tools:
        if profile.called is None:
            example = convention_of(turns.template).example
            yield f"the template writes no tool calls; they are written and read as {example}"
        elif reading.calls:
            yield f"the template's tool calls cannot be read back: it serves without tools only ({reading.calls})"
        if not shows_tools:
            yield "the template does not show the tools to the model: describe them in a system message"
    if turns.template.forms.no_nulls:
        yield "the template leaves out arguments of calls that are null; what was sampled is kept"
    if profile.content_after_calls:
        yield "the template moves text after the calls of its turn; the text stays where it was sampled"
    if reading.beside_text and not reading.calls:
        yield f"a call next to text is not read: {reading.beside_text}"
    if reading.freely and not reading.calls:
        yield f"a call is read only as the template writes it: {reading.freely}"


def _thinks(template: Template) -> bool:
    """Whether the template writes the thoughts of an answer."""
    answer = {**SAYS, "reasoning_content": THOUGHT}
    return THOUGHT in (template.try_render([*CASES[0].messages[:1], answer]) or "")


def _certify(turns: Turns, case: Case, findings: _Findings, renders: _Renders) -> None:
    if not all(findings.capabilities.get(name, False) for name in case.needs):
        return
    case = replace(case, messages=tuple(turns.template.identified(case.messages)))
    if case.capability and not _carries(turns, case, case.capability, findings):
        return
    departures = _walk(turns, case, renders, shows_results=findings.capabilities.get("tool_results", True))
    if departures:
        findings.departures.append(f"{case.name}: {departures[0]}")
    else:
        findings.proved.append(case.name)


def _carries(turns: Turns, case: Case, capability: str, findings: _Findings) -> bool:
    """Whether the template passes a case. The result is added to the findings."""
    text = turns.template.try_render(case.messages, generation_prompt=True)
    earlier = findings.capabilities.get(capability, True)
    carried = text is not None and all(part in text for part in case.says) and earlier
    findings.capabilities[capability] = carried
    if not carried and text is not None and capability == "tool_results" and turns.profile.called is not None:
        findings.departures.append(f"{case.name}: the template leaves the result out")
    return carried


def _walk(turns: Turns, case: Case, renders: _Renders, shows_results: bool) -> list[str]:
    """Play a case. Returns its departures: places where the template rewrites history. Raises TemplateError at the
    first wrong bridge."""
    template, messages, departures = turns.template, case.messages, list[str]()
    index = _next_turn(messages, 0)
    prompt = template.render(messages[:index], generation_prompt=True)
    _check_all_is_said(template, case, messages[:index], prompt, shows_results)
    tokens = renders.full(case, index)
    while index < len(messages):
        sampled = renders.sampled(case, index)
        end = _next_turn(messages, index + 1)
        new = messages[index + 1 : end]
        bridge = turns.bridge(messages[: index + 1], _action(messages[index], sampled), new).tokens
        _check_all_is_said(template, case, new, template.decode(bridge), shows_results)
        tokens = [*tokens, *sampled, *bridge]
        full = renders.full(case, end)
        if tokens != full:
            _check_header(template, case, index, sampled)
            _compare(turns, case, index, messages[index + 1 : end], sampled, bridge, full)
            ours, theirs = _parting(template, tokens, full)
            departures.append(f"kept as sampled {ours!r} where the full render has {theirs!r}")
        if template.tells_time:
            with at_moment(ANOTHER_DAY):
                later = template.encode(template.render(messages[:end], generation_prompt=True))
            if later[len(later) - len(bridge) :] != list(bridge):
                departures.append("the text after a turn holds the date or time, and stays as it was first written")
        index = end
    return departures


def _check_all_is_said(template: Template, case: Case, new: Sequence[Message], text: str, shows_results: bool) -> None:
    """Raises TemplateError if the rendered text lacks a part of a message, because the model could not learn from
    unseen text."""
    for message in new:
        if not _has_words(message["content"], text) and (shows_results or message["role"] != "tool"):
            raise TemplateError(
                f"the chat template of {template.name} leaves out a part of a message of the {message['role']}: "
                f"{case.name}: {message['content']!r} is written as {text[-200:]!r}"
            )


def _check_header(template: Template, case: Case, index: int, sampled: Sequence[int]) -> None:
    """Raises TemplateError if a sampled turn begins with the header of a turn, although the prompt already ends with
    the header.

    The bridge may still be right, but a model trained on the turn would learn to write its header.
    """
    turn, last_word = case.messages[index], re.findall(r"\w+", case.messages[index - 1]["content"])[-1]
    header = _between(template.render(case.messages[:index], generation_prompt=True), last_word, ())
    ours = _between(template.decode(sampled), "", _words(turn))
    theirs = _between(template.render(case.messages[: index + 1]), last_word, _words(turn))
    markers = {template.decode([token]) for token in template.encode(header) if token in template.special_ids}
    for marker in markers:
        if marker in ours and (header + ours).count(marker) > theirs.count(marker):
            raise _WrongError(
                case.name,
                f"the chat template of {template.name} cannot be continued exactly: {case.name}: {marker!r} is in "
                f"the prompt {header[-60:]!r}, and again in the turn {ours[-60:]!r}; use one that writes it once",
            )


def _between(text: str, before: str, words: Collection[str]) -> str:
    """The text after the last occurrence of `before`, up to the first of the words. Without words, the text up to its
    end."""
    rest = text.rpartition(before)[2] if before else text
    return rest[: min((m.start() for m in re.finditer(r"\w+", rest) if m.group() in words), default=len(rest))]


def _words(turn: Message) -> set[str]:
    """The words in the content, the thoughts and the arguments of a turn."""
    arguments = [call["function"]["arguments"] for call in turn.get("tool_calls", ())]
    return set(re.findall(r"\w{2,}", f"{turn['content']} {turn.get('reasoning_content', '')} {arguments}"))


def _compare(
    turns: Turns,
    case: Case,
    index: int,
    new: Sequence[Message],
    sampled: Sequence[int],
    bridge: Sequence[int],
    full: Sequence[int],
) -> None:
    """Raises TemplateError unless the full render ends with the bridge, and the text before the bridge ends like the
    sampled turn.

    The template may leave out the turn's stop token, or the whole turn: the sampled tokens are kept anyway.
    """
    template = turns.template
    ours, theirs = _parting(template, bridge, full[len(full) - len(bridge) :])
    if list(full[len(full) - len(bridge) :]) == list(bridge):
        before = template.decode(full[: len(full) - len(bridge)])
        prompt = template.render(case.messages[:index], generation_prompt=True)
        before = before[len(shared(before, prompt)) :]
        turn = case.messages[index]
        ours, theirs = _ending(turn, template.decode(sampled), before)
        lost = [
            m for m in new if not _has_words(m["content"], template.decode(bridge)) and _has_words(m["content"], before)
        ]
        closes = [
            close.stop for close in (turns.profile.answer, turns.profile.called) if close is not None and close.stop
        ]
        stops = [template.decode([token]) for token in (sampled[-1], *turns.profile.stop_token_ids)] + closes
        if not lost and (_same_end(ours, theirs, stops) or _differs_by_id(turn, ours, theirs)):
            return
    raise _WrongError(
        case.name,
        f"the chat template of {template.name} cannot be continued exactly: {case.name}: expected {theirs!r}, "
        f"bridged {ours!r}; use a template whose turns do not depend on what follows them",
    )


def _same_end(ours: str, theirs: str, stops: Sequence[str]) -> bool:
    """Whether two turns end alike, apart from the stop token and the space before it, or end with the sampled stop
    token."""
    our_ends, their_ends = ({side.removesuffix(stop).rstrip() for stop in ("", *stops)} for side in (ours, theirs))
    sampled = stops[0]
    return not our_ends.isdisjoint(their_ends) or (
        theirs.endswith(sampled) and theirs.count(sampled) == ours.count(sampled)
    )


def _differs_by_id(turn: Message, ours: str, theirs: str) -> bool:
    """Whether two turns differ only by a call's id, which the template writes only in history."""
    ids = [call["id"] for call in turn.get("tool_calls", ())]
    history_id = next((call_id for call_id in reversed(ids) if call_id in theirs and call_id not in ours), None)
    rest = theirs.rpartition(history_id)[2].lstrip("\"' ") if history_id else ""
    return bool(rest.strip()) and ours.endswith(rest)


def _has_words(content: str, text: str) -> bool:
    return all(word in text for word in re.findall(r"\w+", content))


def _ending(turn: Message, sampled: str, rendered: str) -> tuple[str, str]:
    """Two texts after the last word of the turn that the template keeps: in the sampled turn, and in the template's
    render."""
    words = _words({**turn, "reasoning_content": ""})
    ends = [{m.group(): m.end() for m in re.finditer(r"\w+", side)} for side in (sampled, rendered)]
    survived = words.intersection(*ends)
    if not survived:
        return "", ""
    last = max(survived, key=ends[0].__getitem__)
    return sampled[ends[0][last] :], rendered[ends[1][last] :]


def _next_turn(messages: Sequence[Message], start: int) -> int:
    turns = (i for i in range(start, len(messages)) if messages[i]["role"] == "assistant")
    return next(turns, len(messages))


def _action(message: Message, tokens: Sequence[int]) -> Action:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return Action("", message["content"], None, calls, "stop", tokens[-1], tuple(tokens))


def _parting(template: Template, ours: Sequence[int], theirs: Sequence[int]) -> tuple[str, str]:
    """A text for the error message: both token sequences as text, from shortly before the first difference."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    part = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    our_text, their_text = (template.decode(side[max(0, part - 4) : part + 12]) for side in (ours, theirs))
    return our_text.strip("\ufffd"), their_text.strip("\ufffd")
