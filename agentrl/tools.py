"""`@tool`: a method the model may call. Its JSON schema comes from type hints and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints, overload

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from agentrl.errors import CallError, ConfigError
from agentrl.types import JSON, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What `@tool(...)` was given; kept on the function until its class is made."""

    name: str = ""
    timeout: float | None = None
    parallel: bool = True


@overload
def tool(f: F, /) -> F: ...
@overload
def tool(*, name: str = "", timeout: float | None = None, parallel: bool = True) -> Callable[[F], F]: ...
def tool(f: Any = None, /, **options: Any) -> Any:
    """Offer a method of an Env to the model.

    The tool's description is the docstring's text, an argument's is its line under `Args:`. `timeout` is in seconds and
    replaces `Limits.tool_s`. With `parallel=False` the tool never overlaps another call of the same episode; a plain
    `def` tool never does in any case. An argument without a type hint is a ConfigError when the class is made.
    """

    def mark(function: F) -> F:
        function.__agentrl_tool__ = ToolOptions(**options)  # type: ignore[attr-defined]
        return function

    return mark if f is None else mark(f)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool method of an Env class: its schema, and the model that validates its arguments."""

    name: str
    attribute: str
    """Name of the method; differs from `name` under `@tool(name=...)`."""
    spec: ToolSpec
    arguments: type[BaseModel]
    timeout: float | None
    parallel: bool

    def validate(self, arguments: Mapping[str, JSON]) -> dict[str, Any]:
        """Arguments as the method takes them. Raises CallError saying, for the model to read, what is wrong."""
        try:
            model = self.arguments.model_validate(arguments)
        except ValidationError as exc:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg'].lower()}" for e in exc.errors()
            )
            known = ", ".join(self.arguments.model_fields) or "none"
            raise CallError(f"invalid arguments for {self.name}: {problems} (it takes: {known})") from exc
        return {name: getattr(model, name) for name in self.arguments.model_fields}


def collect_tools(cls: type) -> dict[str, Tool]:
    """The @tool methods of a class by tool name, in order of definition, base classes first.

    Raises ConfigError for an argument without a type hint, and for two tools of one name.
    """
    found: dict[str, Tool] = {}
    attributes = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for attribute in attributes:
        function = getattr(cls, attribute, None)
        options = getattr(function, "__agentrl_tool__", None)
        if function is None or options is None:
            continue
        made = _make_tool(cls, attribute, function, options)
        if made.name in found:
            raise ConfigError(f"{cls.__name__} has two tools named {made.name!r}; rename one with @tool(name=...)")
        found[made.name] = made
    return found


def _make_tool(cls: type, attribute: str, function: Callable[..., Any], options: ToolOptions) -> Tool:
    name, where = options.name or attribute, f"{cls.__name__}.{attribute}"
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {param.arg_name: param.description for param in doc.params}
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as exc:
        raise ConfigError(f"tool {where}: type hint cannot be resolved: {exc}; import it at module level") from exc
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {where}: *{parameter.name} has no JSON schema; name each argument")
        if parameter.name not in hints:
            raise ConfigError(
                f"tool {where}: argument {parameter.name!r} has no type hint; write `{parameter.name}: str`, say"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_describe(hints[parameter.name], described.get(parameter.name)), default)
    try:
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        arguments = create_model(f"{name}_arguments", __config__=config, **fields)
        schema = arguments.model_json_schema()
    except (PydanticUserError, NameError) as exc:
        raise ConfigError(f"tool {where}: no JSON schema for its arguments: {str(exc).splitlines()[0]}") from exc
    description = "\n\n".join(filter(None, (doc.short_description, doc.long_description)))
    spec = {"name": name, "description": description, "parameters": _plain(schema)}
    return Tool(name, attribute, {"type": "function", "function": spec}, arguments, options.timeout, options.parallel)


def _describe(hint: Any, description: str | None) -> Any:
    if description is None or (
        get_origin(hint) is Annotated and any(hasattr(m, "description") for m in hint.__metadata__)
    ):
        return hint
    return Annotated[hint, Field(description=" ".join(description.split()))]


def _plain(schema: dict[str, JSON]) -> dict[str, JSON]:
    """pydantic's schema without the titles it invents, which would be prompt tokens that say nothing."""
    parameters = {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}
    parameters["properties"] = {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema.get("properties", {}).items()
    }
    return parameters
