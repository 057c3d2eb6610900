"""What a client demands of the answer's form: a tool call, or JSON. Each API has its own place for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Forced
from agentrl.chat.wires.reading import mapping, refuse, sequence, string
from agentrl.types import JSON, ToolSpec

_OBJECT: Mapping[str, JSON] = {"type": "object"}
_FREE = (None, "auto", "none")
"""Values of `tool_choice` that demand nothing."""
_FORMATS = ("response_format", "output_format")
_WITHIN = (("text", "format"), ("output_config", "format"))
_WHY = "an AgentEnv may set SessionOptions(forced='ignore')"


def tools_shown(choice: JSON) -> bool:
    """Whether the tools may be called."""
    return bool(_kind(choice) != "none")


def forced(body: Mapping[str, JSON], tools: Sequence[ToolSpec], options: SessionOptions) -> Forced | None:
    """What the body demands. None if the model may answer freely. Raises RefusedError for what cannot be demanded."""
    demanded, schema = _kind(body.get("tool_choice")) not in _FREE, _schema(body)
    if not demanded and schema is None:
        return None
    if options.forced == "refuse":
        what = "tool_choice" if demanded else "response_format"
        raise refuse(f"{what}: the answer's form is not forced in this session; leave it out ({_WHY})")
    names = _forced_names(body.get("tool_choice"), tools)
    shown = tools_shown(body.get("tool_choice"))
    if names is None:
        names = _names(tools) if shown else ()
    else:
        schema = None  # a call that is demanded leaves no text to form
    return Forced(names, schema, parallel=_parallel(body))


def _kind(choice: JSON) -> JSON:
    return choice.get("type") if isinstance(choice, dict) else choice


def _names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in tools)


def _parallel(body: Mapping[str, JSON]) -> bool:
    choice = body.get("tool_choice")
    single = isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True
    return body.get("parallel_tool_calls") is not False and not single


def _forced_names(choice: JSON, tools: Sequence[ToolSpec]) -> tuple[str, ...] | None:
    """The tools of which one must be called. None if no call is demanded."""
    kind, known = _kind(choice), _names(tools)
    if kind in _FREE:
        return None
    if kind in ("required", "any"):
        names = known
    elif kind in ("function", "tool", "custom") and isinstance(choice, dict):
        names = (_name(choice),)
    elif kind == "allowed_tools" and isinstance(choice, dict):
        names = _allowed(choice)
    else:
        raise refuse(f'tool_choice: {kind!r:.80} is not served; use "auto", "required" or a function ({_WHY})')
    if not names:
        raise refuse("tool_choice: a call is demanded, and there are no tools; send tools, or leave it out")
    if missing := [name for name in names if name not in known]:
        raise refuse(f"tool_choice: no tool has the name {missing[0]!r:.80}; name one of the request's tools")
    return names


def _allowed(choice: Mapping[str, JSON]) -> tuple[str, ...]:
    within = choice.get("allowed_tools", choice)
    within = mapping(within, "tool_choice.allowed_tools")
    if within.get("mode") != "required":
        raise refuse(f'tool_choice: allowed_tools is served with the mode "required" only; send fewer tools ({_WHY})')
    tools = sequence(within.get("tools"), "tool_choice.tools")
    return tuple(_name(mapping(tool, "tool_choice.tools")) for tool in tools)


def _name(said: Mapping[str, JSON]) -> str:
    """The name in any of the forms: `{"name"}`, `{"function": {"name"}}` or `{"custom": {"name"}}`."""
    within = said.get("function") or said.get("custom") or said
    return string(mapping(within, "tool_choice").get("name"), "tool_choice.name")


def _schema(body: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """The JSON schema of the answer. None if it may be any text."""
    for name in _FORMATS:
        if (found := _schema_of(body.get(name), name)) is not None:
            return found
    for outer, name in _WITHIN:
        within = body.get(outer)
        form = within.get(name) if isinstance(within, dict) else None
        if (found := _schema_of(form, f"{outer}.{name}")) is not None:
            return found
    return None


def _schema_of(form: JSON, where: str) -> Mapping[str, JSON] | None:
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return _OBJECT
    if kind == "json_schema" and isinstance(form, dict):
        within = form.get("json_schema", form)
        schema = mapping(within, f"{where}.json_schema").get("schema")
        return _OBJECT if schema is None else mapping(schema, f"{where}.schema")
    raise refuse(f'{where}: {kind!r:.80} is not served; use "json_schema" or "json_object" ({_WHY})')
