"""Read a client's demands on the form of the answer: a tool call, JSON, or another text. Each API has its own
fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Forced
from agentrl.chat.wires.reading import mapping, refuse, sequence, string, strings
from agentrl.types import JSON, ToolSpec

_OBJECT: Mapping[str, JSON] = {"type": "object"}
_FREE = (None, "auto", "none")
"""Values of `tool_choice` that demand no call."""
_FORMATS = ("response_format", "output_format")
_WITHIN = (("text", "format"), ("output_config", "format"))
_WHY = "an AgentEnv may set SessionOptions(forced='ignore')"
FORMS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Fields of vLLM and SGLang -> the key with the same meaning in vLLM's `structured_outputs`."""
_STRUCTURED = ("json", "json_object", "regex", "choice", "grammar")


def callable_tools(choice: JSON, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools that the model may call: none with `tool_choice: none`, the allowed tools with `allowed_tools` in mode
    auto, else all tools."""
    kind = _kind(choice)
    if kind == "none":
        return ()
    if kind != "allowed_tools" or not isinstance(choice, dict) or _mode(choice) != "auto":
        return tuple(tools)
    allowed = _checked(_allowed(choice), tools)
    return tuple(tool for tool in tools if tool["function"]["name"] in allowed)


def forced(body: Mapping[str, JSON], tools: Sequence[ToolSpec], options: SessionOptions) -> Forced | None:
    """The demand of a request's body. None if the model may answer freely. Raises RefusedError for an impossible
    demand."""
    choice = body.get("tool_choice")
    demanded, schema, text = _demands_call(choice), _schema(body), _text(body)
    if not demanded and schema is None and text is None:
        return None
    source = "tool_choice" if demanded else _source(body)
    if options.forced == "refuse":
        raise refuse(f"{source}: the answer's form is not forced in this session; leave it out ({_WHY})")
    if demanded:  # a call that is demanded leaves no text to form
        return Forced(_forced_names(choice, tools), parallel=parallel(body))
    return Forced(_names(callable_tools(choice, tools)), schema, text, parallel(body), source)


def parallel(body: Mapping[str, JSON]) -> bool:
    """Whether a reply may hold more than one call."""
    choice = body.get("tool_choice")
    single = isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True
    return body.get("parallel_tool_calls") is not False and not single


def _kind(choice: JSON) -> JSON:
    return choice.get("type") if isinstance(choice, dict) else choice


def _demands_call(choice: JSON) -> bool:
    kind = _kind(choice)
    return kind not in _FREE and not (kind == "allowed_tools" and isinstance(choice, dict) and _mode(choice) == "auto")


def _names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in tools)


def _forced_names(choice: JSON, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Names of the tools of which the client demands a call."""
    kind = _kind(choice)
    if kind in ("required", "any"):
        names = _names(tools)
    elif kind in ("function", "tool", "custom") and isinstance(choice, dict):
        names = (_name(choice),)
    elif kind == "allowed_tools" and isinstance(choice, dict):
        names = _allowed(choice)
    else:
        raise refuse(f'tool_choice: {kind!r:.80} is not served; use "auto", "required" or a function ({_WHY})')
    if not names:
        raise refuse("tool_choice: a call is demanded, and there are no tools; send tools, or leave it out")
    return _checked(names, tools)


def _checked(names: tuple[str, ...], tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """The names unchanged. Raises RefusedError if a name is no tool's."""
    all_names = _names(tools)
    if missing := [name for name in names if name not in all_names]:
        raise refuse(f"tool_choice: no tool has the name {missing[0]!r:.80}; name one of the request's tools")
    return names


def _within(choice: Mapping[str, JSON]) -> Mapping[str, JSON]:
    return mapping(choice.get("allowed_tools", choice), "tool_choice.allowed_tools")


def _mode(choice: Mapping[str, JSON]) -> str:
    mode = _within(choice).get("mode", "auto")
    if mode not in ("auto", "required"):
        raise refuse(f'tool_choice: allowed_tools has the mode {mode!r:.80}; use "auto" or "required"')
    return str(mode)


def _allowed(choice: Mapping[str, JSON]) -> tuple[str, ...]:
    tools = sequence(_within(choice).get("tools"), "tool_choice.tools")
    return tuple(_name(mapping(tool, "tool_choice.tools")) for tool in tools)


def _name(choice: Mapping[str, JSON]) -> str:
    """The tool's name in a `tool_choice`: `{"name"}`, `{"function": {"name"}}` or `{"custom": {"name"}}`."""
    within = choice.get("function") or choice.get("custom") or choice
    return string(mapping(within, "tool_choice").get("name"), "tool_choice.name")


def _schema(body: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """The JSON schema that the client demands of the answer. None without a demand for JSON."""
    for name in _FORMATS:
        if (schema := _schema_of(body.get(name), name)) is not None:
            return schema
    for outer, name in _WITHIN:
        within = body.get(outer)
        form = within.get(name) if isinstance(within, dict) else None
        if (schema := _schema_of(form, f"{outer}.{name}")) is not None:
            return schema
    for kind, value, where in _servers_forms(body):
        if kind == "json":
            return _read_schema(value, where)
        if kind == "json_object" and value is True:
            return _OBJECT
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


def _read_schema(value: JSON, where: str) -> Mapping[str, JSON]:
    """Read a JSON schema, which may also be a text, as for vLLM."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise refuse(f"{where} is not JSON ({exc}); send a JSON schema") from exc
    return mapping(value, where)


def _text(body: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """The demanded form of an answer that is no JSON, as a format of xgrammar. None without such a demand."""
    for kind, value, where in _servers_forms(body):
        if kind == "regex":
            return {"type": "regex", "pattern": string(value, where)}
        if kind == "grammar":
            return {"type": "grammar", "grammar": string(value, where)}
        if kind == "choice":
            choices = strings(value, where)
            if not choices:
                raise refuse(f"{where} is empty; list the answers that are allowed")
            return {"type": "or", "elements": [{"type": "const_string", "value": choice} for choice in choices]}
    return None


def _source(body: Mapping[str, JSON]) -> str:
    """Name of the body's field that demands a form."""
    names = (*FORMS, "structured_outputs", *_FORMATS, *(outer for outer, _ in _WITHIN))
    return next((name for name in names if body.get(name) is not None), "response_format")


def _servers_forms(body: Mapping[str, JSON]) -> Iterator[tuple[str, JSON, str]]:
    """Yield the forms that fields of vLLM and SGLang demand: the kind, the value and the field's name."""
    for name, kind in FORMS.items():
        if body.get(name) is not None:
            yield kind, body[name], name
    within = body.get("structured_outputs")
    for key, value in (mapping(within, "structured_outputs") if within is not None else {}).items():
        if key in _STRUCTURED and value is not None:
            yield key, value, f"structured_outputs.{key}"
        elif value not in (None, False, "") and not key.startswith(("disable_", "whitespace_", "_", "backend")):
            raise refuse(f"structured_outputs.{key} is not served; use {', '.join(_STRUCTURED)} ({_WHY})")
