"""Render a chat template with symbols, in a jinja2 environment in which every use of a symbol is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Environment, nodes
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, Macro, Undefined
from jinja2.visitor import NodeTransformer

from agentrl.render.symbols import TIME, Hole, Symbol, Trace, UntraceableError, change, joined

Render = Callable[[Mapping[str, Any]], str]

_ITSELF = (
    *("list", "first", "last", "length", "count", "reverse", "map", "select", "reject", "selectattr", "rejectattr"),
    *("default", "d", "items", "trim", "string", "upper", "lower", "capitalize", "replace"),
)
"""Filters that can stay as they are: their Python code uses the methods of their arguments."""
_OF_TYPE = (
    *("defined", "undefined", "none", "string", "mapping", "number", "boolean", "integer", "float", "true", "false"),
    *("callable", "filter", "test"),
)
"""Tests (`is ...`) with the same answer for all strings."""
_OF_SHAPE = ("sequence", "iterable")
"""Tests with the same answer for all strings, whose code looks at the string. These tests read no element of a list."""
_EQUAL = ("eq", "equalto", "==", "ne", "!=")
_INTERNAL = ("_loop_vars", "_block_vars")
"""Names of jinja2's added arguments in calls within loops and blocks, for functions with a context."""
_SCALARS = (str, int, float, type(None), Undefined, Macro, EvalContext, Context, Environment)


@lru_cache(maxsize=64)
def tracer(source: str) -> Render:
    """A function for rendering the template with variables. The variables may hold symbols.

    Raises UntraceableError if the library does not compile templates as expected.
    """
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError as exc:
        raise UntraceableError("this version of transformers hides its templates") from exc
    base: Environment = _compile_jinja_template(source).environment
    template = _tracing(base).from_string(source)

    def render(variables: Mapping[str, Any]) -> str:
        return template.render(variables)

    return render


def clock(trace: Trace) -> Callable[[str], str]:
    """A `strftime_now` for a render with symbols, whose result is a symbol."""
    return lambda _: trace.combined("zqtime", [Hole(TIME)])


def _tracing(base: Environment) -> Environment:
    """A copy of a jinja2 environment that traces symbols."""
    kind = type("Tracing", (_Hooks, type(base)), {})
    env: Any = object.__new__(kind)
    env.__dict__.update(base.__dict__)
    env.cache, env.concat, env.intercepted_binops = None, joined, frozenset(("%",))
    env.extensions = {name: extension.bind(env) for name, extension in base.extensions.items()}
    env.filters = {name: _filter(name, function) for name, function in base.filters.items()}
    env.filters |= {"agentrl_joined": _concatenated, "agentrl_in": _contained}
    env.tests = {name: _test(name, function) for name, function in base.tests.items()}
    tracing: Environment = env
    return tracing


class _Hooks:
    """The overridden methods of a tracing environment."""

    def _parse(self, *args: Any) -> nodes.Template:
        tree = _Rewriting().visit(super()._parse(*args))  # type: ignore[misc]
        tree.set_environment(self)
        parsed: nodes.Template = tree
        return parsed

    def call(__self, __context: Context, __function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as in jinja2
        arguments = {name: value for name, value in kwargs.items() if name not in _INTERNAL}
        if not _is_plain((args, arguments)) and not __self._follows(__function):
            raise UntraceableError("it calls a function with a text")
        return super().call(__context, __function, *args, **kwargs)  # type: ignore[misc]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if not _is_plain((left, right)):
            raise UntraceableError("it formats a text")
        return super().call_binop(context, operator, left, right)  # type: ignore[misc]

    def _follows(self, function: Any) -> bool:
        """Whether a call of the function can be traced: it only stores its arguments, or is a method of a symbol."""
        variables = getattr(self, "globals", {})
        if isinstance(function, Macro) or any(function is variables.get(name) for name in ("namespace", "dict")):
            return True
        owner = getattr(function, "__self__", None)
        if isinstance(function, MethodType) and isinstance(owner, Symbol):
            return True
        return isinstance(function, BuiltinMethodType) and isinstance(owner, dict) and function.__name__ == "get"


class _Rewriting(NodeTransformer):
    """Replaces the operators `~` and `in`, which are C code, by filters."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - as in jinja2
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), "agentrl_joined", [], node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - as in jinja2
        self.generic_visit(node)
        within = [operand.op for operand in node.ops if operand.op in ("in", "notin")]
        if not within:
            return node
        if len(node.ops) > 1:
            raise UntraceableError("it compares in a chain")
        contained = _filtered(node.expr, "agentrl_in", [node.ops[0].expr], node)
        return contained if within == ["in"] else nodes.Not(contained, lineno=node.lineno)

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:  # noqa: N802 - as in jinja2
        raise UntraceableError("it changes how text is escaped")

    visit_EvalContextModifier = visit_ScopedEvalContextModifier  # noqa: N815


def _filtered(value: nodes.Expr, name: str, args: list[nodes.Expr], node: nodes.Node) -> nodes.Expr:
    return nodes.Filter(value, name, args, [], None, None, lineno=node.lineno)


def _concatenated(values: Iterable[Any]) -> str:
    """The filter for `a ~ b`."""
    return joined(map(str, values))


def _contained(item: Any, container: Any) -> bool:
    """The filter for `item in container`."""
    if isinstance(item, Symbol) and not isinstance(container, Symbol | list | tuple):
        raise UntraceableError("it looks a text up")
    return item in container


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name in _ITSELF:
        return function

    @wraps(function)
    def followed(*args: Any, **kwargs: Any) -> Any:
        if name == "random":
            raise UntraceableError("it throws dice")
        if name == "tojson" and isinstance(args[0], Symbol) and _is_plain((args[1:], kwargs)):
            return change(args[0], function, *args[1:], **kwargs)
        if not _is_plain((args, kwargs)):
            raise UntraceableError(f"it uses {name} on a text")
        return function(*args, **kwargs)

    return followed


def _test(name: str, function: Any) -> Any:
    if name in _OF_TYPE or name in _EQUAL:
        return function

    @wraps(function)
    def followed(*args: Any, **kwargs: Any) -> Any:
        if name in _OF_SHAPE:
            return isinstance(args[0], Symbol) or function(*args, **kwargs)
        if name == "in":
            return _contained(*args, **kwargs)
        if not _is_plain((args, kwargs)):
            raise UntraceableError(f"it asks whether a text is {name}")
        return function(*args, **kwargs)

    return followed


def _is_plain(value: Any) -> bool:
    """Whether there is certainly no symbol in the value."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _SCALARS) and not isinstance(value, Symbol)
