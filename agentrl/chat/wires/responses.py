"""OpenAI's Responses API: reads requests. `response_events` writes the responses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, ChatRequest, Entry, RefusalKind, Role
from agentrl.chat.wires import fields, forcing, reading, storing, wishes
from agentrl.chat.wires.base import DEFAULTS, ReplyWriter
from agentrl.chat.wires.openai_errors import error_body
from agentrl.chat.wires.reading import refuse
from agentrl.chat.wires.relaxed import relaxed
from agentrl.chat.wires.response_events import ResponseWriter, ToolForm
from agentrl.types import JSON, ToolSpec

_ROLES = ("system", "developer", "user", "assistant")
_ITEM_ID = re.compile("^(msg|rs|fc|ctc)_")
_THOUGHTS = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
_RANKS = {"reasoning": 0, "message": 1, "function_call": 2, "custom_tool_call": 2}
"""Type of an item -> its position in the order of the items of a reply."""
_RAW_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The JSON schema for the parameters of a custom tool, whose argument is plain text."""


class Responses:
    """The API format of `/v1/responses`."""

    def read(
        self, body: Mapping[str, JSON], headers: Mapping[str, str], digest: str, options: SessionOptions = DEFAULTS
    ) -> ReplyWriter:
        body, changed = relaxed(body, options)
        recorded = fields.recorded(body, fields.RESPONSES)
        _refuse_log_probs(body)
        tools = _Tools.of(body.get("tools"))
        instructions = reading.string(body.get("instructions"), "instructions")
        entries = list(_entries(body.get("input"), tools))
        if not entries:
            raise refuse("input: a text, or at least one item, is needed")
        request = ChatRequest(
            wire="responses",
            entries=(*([Entry("system", instructions)] if instructions else ()), *entries),
            tools=forcing.callable_tools(body.get("tool_choice"), tools.specs),
            forced=forcing.forced(body, tools.specs, options),
            stream=body.get("stream") is True,
            max_tokens=reading.bound(body.get("max_output_tokens"), "max_output_tokens"),
            stop=wishes.stop(body),
            model=reading.string(body.get("model"), "model"),
            recorded=recorded | wishes.left_out(tools.left_out) | changed,
            branch=_branch(headers),
            digest=digest,
            continued=wishes.continues(body, entries, marked=_is_unfinished(body.get("input"))),
            **wishes.common(body, headers, effort=_effort(body)),
            **storing.names_in(body),
        )
        return ResponseWriter(request, tools.forms, body, request.response_id)

    def error(self, status: int, message: str, kind: RefusalKind | None = None) -> JSON:
        return error_body(status, message, kind)


def _refuse_log_probs(body: Mapping[str, JSON]) -> None:
    if "message.output_text.logprobs" in reading.sequence(body.get("include"), "include"):
        raise refuse("include: the log-probs stay in the trajectory; leave message.output_text.logprobs out")


def _effort(body: Mapping[str, JSON]) -> JSON:
    reasoning = body.get("reasoning")
    return reasoning.get("effort") if isinstance(reasoning, dict) else None


def _is_unfinished(sent: JSON) -> bool:
    """Whether the last item is an incomplete reply, which the model then continues, as in vLLM."""
    last = sent[-1] if isinstance(sent, list) and sent else None
    if not isinstance(last, dict) or (last.get("role") != "assistant" and last.get("type") != "reasoning"):
        return False
    return last.get("status") in ("incomplete", "in_progress")


def _branch(headers: Mapping[str, str]) -> str:
    """The name of a sub-agent in the headers of Codex or opencode. Empty for the main agent."""
    if headers.get("x-codex-parent-thread-id"):
        return headers.get("thread-id") or "sub-agent"
    if headers.get("x-parent-session-id"):
        return headers.get("x-session-id") or "sub-agent"
    return headers.get("x-openai-subagent", "")


@dataclass(slots=True)
class _Tools:
    """The tools of a request, each with the form of its calls."""

    specs: list[ToolSpec] = field(default_factory=list)
    forms: dict[str, ToolForm] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, sent: JSON) -> _Tools:
        tools = cls()
        for index, tool in enumerate(reading.sequence(sent, "tools")):
            tools._add(reading.mapping(tool, f"tools[{index}]"), f"tools[{index}]", None)
        return tools

    def _add(self, tool: Mapping[str, JSON], where: str, namespace: str | None) -> None:
        kind = tool.get("type")
        if kind == "namespace" and namespace is None:
            name = reading.string(tool.get("name"), f"{where}.name")
            for index, member in enumerate(reading.sequence(tool.get("tools"), f"{where}.tools")):
                place = f"{where}.tools[{index}]"
                self._add(reading.mapping(member, place), place, name)
        elif kind in ("function", "custom"):
            parameters = tool.get("parameters") if kind == "function" else _RAW_INPUT
            spec = reading.function(self._name(tool, namespace), _description(tool), parameters, where)
            self.specs.append(spec)
            form = ToolForm(reading.string(tool.get("name"), where), namespace, kind == "custom")
            self.forms[spec["function"]["name"]] = form
        else:
            self.left_out.append(reading.left_out(kind, where))

    def _name(self, tool: Mapping[str, JSON], namespace: str | None) -> JSON:
        """A unique name for a tool in the prompt. The namespace is added if another tool already has the name."""
        name = tool.get("name")
        return f"{namespace}__{name}" if namespace and name in self.forms else name

    def prompt_name(self, name: str, namespace: str) -> str:
        """A tool's name in the prompt, looked up by the client's name and namespace."""
        form = self.forms.get(name)
        if namespace and form is not None and form.namespace != namespace:
            return f"{namespace}__{name}"
        return name


def _description(tool: Mapping[str, JSON]) -> JSON:
    """The tool's description. A custom tool's grammar is added, because the grammar is not enforced."""
    form = tool.get("format")
    if isinstance(form, dict) and form.get("definition"):
        return f"{tool.get('description') or ''}\n\nThe input follows this grammar:\n{form['definition']}".strip()
    return tool.get("description")


def _entries(sent: JSON, tools: _Tools) -> Iterator[Entry]:
    if isinstance(sent, str):
        yield Entry("user", sent)
        return
    turn = _Turn(tools)
    for index, item in enumerate(reading.sequence(sent, "input")):
        where = f"input[{index}]"
        item = _retold(reading.mapping(item, where))
        kind, refers = item.get("type") or "message", ""
        if kind == "item_reference":
            kind, refers = storing.referred(item, where)
            item = {"type": kind, "id": refers, "role": "assistant"}
        is_reply = kind in _RANKS and (kind != "message" or item.get("role") == "assistant")
        if turn.rank is not None and not (is_reply and turn.takes(kind)):
            yield turn.entry()
            turn = _Turn(tools)
        if refers:
            turn.refer(kind, refers)
        elif is_reply:
            turn.add(kind, item, where)
        else:
            yield from _other(kind, item, where)
    if turn.rank is not None:
        yield turn.entry()


def _retold(item: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Restore the reasoning item from thoughts that a client sends back as an assistant message."""
    if item.get("role") != "assistant":
        return item
    content = item.get("content")
    text = content[0].get("text") if isinstance(content, list) and content and isinstance(content[0], dict) else content
    match = _THOUGHTS.fullmatch(text) if isinstance(text, str) else None
    if match is None or (isinstance(content, list) and len(content) > 1):
        return item
    return {"type": "reasoning", "id": item.get("id"), "summary": [{"type": "summary_text", "text": match[1]}]}


def _other(kind: str, item: Mapping[str, JSON], where: str) -> list[Entry]:
    """The entries of an item that is not from the model."""
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise refuse(f"{where}.role must be one of {', '.join(_ROLES)}, not {role!r:.80}")
        read = reading.parts if role == "user" else reading.texts
        return reading.blocks(cast(Role, role), read(item.get("content"), f"{where}.content"))
    if kind in ("function_call_output", "custom_tool_call_output"):
        call_id = reading.string(item.get("call_id"), f"{where}.call_id")
        parts = reading.parts(item.get("output"), f"{where}.output")
        if item.get("status") == "incomplete":
            parts = reading.failed(parts)
        return [Entry.of("tool", parts, call_id=call_id)]
    raise reading.foreign(kind, where)


@dataclass(slots=True)
class _Turn:
    """Collects the items of one reply: thoughts, then a message, then calls."""

    tools: _Tools
    rank: int | None = None
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    refers: str = ""
    """The id of an item that the request names instead of repeating it."""

    def refer(self, kind: str, name: str) -> None:
        """Add an item of a kind that is only named by its id."""
        self.rank, self.refers = _RANKS[kind], name

    def takes(self, kind: str) -> bool:
        """Whether an item of a kind can be the next item of the same reply. Only a call can follow an item of its own
        kind."""
        rank = _RANKS[kind]
        return self.rank is None or rank > self.rank or rank == _RANKS["function_call"] == self.rank

    def add(self, kind: str, item: Mapping[str, JSON], where: str) -> None:
        self.rank = _RANKS[kind]
        self.receipts.append(_ITEM_ID.sub("", reading.string(item.get("id"), f"{where}.id")))
        match kind:
            case "reasoning":
                self.thoughts.append(_thoughts(item, where))
                self.receipts.append(reading.string(item.get("encrypted_content"), f"{where}.encrypted_content"))
            case "message":
                self.texts.extend(reading.texts(item.get("content"), f"{where}.content"))
            case _:
                self.calls.append(self._call(kind, item, where))
                self.receipts.append(self.calls[-1].id)

    def _call(self, kind: str, item: Mapping[str, JSON], where: str) -> Call:
        name = reading.string(item.get("name"), f"{where}.name")
        tool_name = self.tools.prompt_name(name, reading.string(item.get("namespace"), f"{where}.namespace"))
        call_id = reading.string(item.get("call_id"), f"{where}.call_id")
        if kind == "custom_tool_call":
            return Call(call_id, tool_name, {"input": reading.string(item.get("input"), f"{where}.input")})
        return Call(call_id, tool_name, reading.arguments(item.get("arguments")))

    def entry(self) -> Entry:
        reasoning = "".join(self.thoughts) if self.thoughts else None
        receipts = reading.unique(self.receipts)
        return Entry("assistant", "".join(self.texts), reasoning, tuple(self.calls), receipts, refers=self.refers)


def _thoughts(item: Mapping[str, JSON], where: str) -> str:
    """The thoughts in a reasoning item: its content, or else its summary."""
    parts: Sequence[JSON] = reading.sequence(item.get("content"), f"{where}.content")
    parts = parts or reading.sequence(item.get("summary"), f"{where}.summary")
    return "".join(
        reading.string(reading.mapping(part, f"{where}[{index}]").get("text"), f"{where}[{index}].text")
        for index, part in enumerate(parts)
    )
