"""`@tool` marks a method for the model. The JSON schema comes from type hints and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints, overload

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from agentrl.errors import CallError, ConfigError
from agentrl.plain import to_json
from agentrl.types import JSON, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__agentrl_tool__"
_BY_NAME, _VALUES = ("properties", "$defs"), ("default", "const", "enum", "examples")
"""`_BY_NAME`: keys of a JSON schema whose value maps the author's names to schemas. `_VALUES`: keys that hold a value,
not a schema."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options of `@tool(...)`, kept on the function until its class is made."""

    name: str = ""
    timeout: float | None = None
    parallel: bool = True


@overload
def tool(f: F, /) -> F: ...
@overload
def tool(*, name: str = "", timeout: float | None = None, parallel: bool = True) -> Callable[[F], F]: ...
def tool(f: Any = None, /, **options: Any) -> Any:
    """Offer a method of an Env to the model.

    The docstring's text describes the tool, and lines under `Args:` describe the arguments. `timeout` replaces
    `Limits.tool_s`, in seconds; the wait for earlier calls is not counted. With `parallel=False` the tool never
    overlaps another call of the same turn. Two plain `def` tools never overlap. An argument without a type hint raises
    ConfigError when the class is made.
    """

    def mark(function: F) -> F:
        if not isinstance(function, FunctionType | staticmethod | classmethod):
            raise ConfigError(f"@tool marks a method, not {function!r}; put it directly above a `def`")
        function.__agentrl_tool__ = ToolOptions(**options)  # type: ignore[union-attr]
        return function

    return mark if f is None else mark(f)


def is_tool(member: object) -> bool:
    """Whether a class's member is marked with @tool, above or below a @staticmethod or @classmethod."""
    return _options(member) is not None


def _options(member: object) -> ToolOptions | None:
    inner = getattr(member, "__func__", None)
    options = getattr(member, _MARK, None) or getattr(inner, _MARK, None)
    return options if isinstance(options, ToolOptions) else None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool method of an Env class: the schema, and the model for validating arguments."""

    name: str
    attribute: str
    """Name of the method. `name`, the name for the model, differs after `@tool(name=...)`."""
    spec: ToolSpec
    arguments: type[BaseModel]
    timeout: float | None
    parallel: bool

    def validate(self, arguments: Mapping[str, JSON]) -> dict[str, Any]:
        """The arguments, converted for the method. Raises CallError with a message that the model reads."""
        try:
            model = self.arguments.model_validate(arguments)
        except ValidationError as exc:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg'].lower()}" for e in exc.errors()
            )
            names = ", ".join(field.alias or name for name, field in self.arguments.model_fields.items()) or "none"
            raise CallError(f"invalid arguments for {self.name}: {problems} (it takes: {names})") from exc
        return {field.alias or name: getattr(model, name) for name, field in self.arguments.model_fields.items()}


def collect_tools(cls: type) -> dict[str, Tool]:
    """The @tool methods of a class by tool name, in order of definition, base classes first.

    A method that overrides a tool is a tool too, with or without @tool. Any other value of the name, such as None,
    removes the tool. Raises ConfigError for a tool without a usable schema, and for two tools of one name.
    """
    tools: dict[str, Tool] = {}
    attributes = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for attribute in attributes:
        members = [vars(base)[attribute] for base in cls.__mro__ if attribute in vars(base)]
        options = next(filter(None, map(_options, members)), None)
        if options is None or not isinstance(members[0], FunctionType | staticmethod | classmethod):
            continue
        tool = _make_tool(cls, attribute, members, options)
        if tool.name in tools:
            raise ConfigError(f"{cls.__name__} has two tools named {tool.name!r}; rename one with @tool(name=...)")
        tools[tool.name] = tool
    return tools


def tool_name(spec: ToolSpec) -> str:
    return str(spec["function"]["name"])


def normal_spec(spec: Any) -> ToolSpec:
    """A tool in the form that chat templates take. A bare `{"name": ...}` is wrapped. Raises ConfigError for an invalid
    tool."""
    function = spec.get("function", spec) if isinstance(spec, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConfigError(
            f"{spec!r:.80} is not a tool; write "
            '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
        )
    if not isinstance(function.get("parameters", {}), Mapping):
        raise ConfigError(
            f'tool {function["name"]}: "parameters" must be a JSON schema, not {function["parameters"]!r:.80}'
        )
    if function is not spec:
        return spec if spec.get("type") == "function" else {**spec, "type": "function"}
    return {"type": "function", "function": {key: value for key, value in spec.items() if key != "type"}}


def _make_tool(cls: type, attribute: str, members: Sequence[Any], options: ToolOptions) -> Tool:
    name, where = options.name or attribute, f"tool {cls.__name__}.{attribute}"
    function = getattr(members[0], "__func__", members[0])
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where} yields; return its whole result at once")
    doc = docstring_parser.parse(next(filter(None, (inspect.getdoc(member) for member in members)), ""))
    described = {param.arg_name: param.description for param in doc.params}
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(_parameters(where, members[0], function)):
        default = ... if parameter.default is parameter.empty else parameter.default
        hint = _describe(_hint(where, function, parameter), described.get(parameter.name))
        # Neutral field names: the argument's own name may start with _ or mean something to pydantic.
        fields[f"argument_{number}"] = (Annotated[hint, Field(alias=parameter.name)], default)
    try:
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False, allow_inf_nan=False)
        arguments = create_model(f"{name}_arguments", __config__=config, **fields)
        schema = arguments.model_json_schema()
    except (PydanticUserError, NameError) as exc:
        raise ConfigError(f"{where}: no JSON schema for its arguments: {str(exc).splitlines()[0]}") from exc
    try:
        parameters = to_json(_plain(schema), "its schema")
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{where}: {exc}; give a default that JSON can hold, such as None") from exc
    description = "\n\n".join(filter(None, (doc.short_description, doc.long_description)))
    spec = {"name": name, "description": description, "parameters": parameters}
    return Tool(name, attribute, {"type": "function", "function": spec}, arguments, options.timeout, options.parallel)


def _parameters(where: str, member: object, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that the model gives: all but `self` or `cls`."""
    parameters = list(inspect.signature(function).parameters.values())
    if not isinstance(member, staticmethod):
        first = parameters[0] if parameters else None
        if first is None or first.kind not in _POSITIONAL or _is_argument(first):
            raise ConfigError(f"{where} takes no `self`; add it, or use @staticmethod")
        del parameters[0]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"{where}: *{parameter.name} has no JSON schema; name each argument")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where}: tools are called by argument names; remove the `/` after {parameter.name!r}")
        if parameter.annotation is parameter.empty:
            raise ConfigError(
                f"{where}: argument {parameter.name!r} has no type hint; write `{parameter.name}: str`, for example"
            )
    return parameters


def _is_argument(first: inspect.Parameter) -> bool:
    """Whether the first parameter of a method is meant for the model: it has a type hint or a default."""
    return first.name not in ("self", "cls") and (first.annotation, first.default) != (first.empty,) * 2


def _hint(where: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type hint of a parameter. The return type is not read, because only a type checker may know the type."""
    plain = inspect.unwrap(function)
    alone = FunctionType(_nothing.__code__, getattr(plain, "__globals__", {}))
    alone.__annotations__ = {parameter.name: parameter.annotation}
    try:
        return get_type_hints(alone, include_extras=True)[parameter.name]
    except NameError as exc:
        raise ConfigError(f"{where}: type hint cannot be resolved: {exc}; import it at module level") from exc


def _nothing() -> None: ...


def _describe(hint: Any, description: str | None) -> Any:
    if description is None or (
        get_origin(hint) is Annotated and any(hasattr(m, "description") for m in hint.__metadata__)
    ):
        return hint
    return Annotated[hint, Field(description=" ".join(description.split()))]


def _plain(schema: dict[str, JSON]) -> dict[str, JSON]:
    """pydantic's schema without generated titles, which would waste prompt tokens."""
    parameters = {key: value for key, value in schema.items() if key != "additionalProperties"}
    return {"properties": {}, **_untitled(parameters)}


def _untitled(schema: JSON) -> JSON:
    """A schema without titles, at any depth. An argument or a model may be called "title"."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _untitled(item) for name, item in value.items()} if key in _BY_NAME else _untitled(value)
        for key, value in schema.items()
        if key not in ("title", *_VALUES)
    } | {key: schema[key] for key in _VALUES if key in schema}
