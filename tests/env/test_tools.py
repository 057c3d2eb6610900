"""@tool: the schema a model reads, and what it is told when its arguments are wrong."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentrl import ConfigError, Env, ToolError, tool
from agentrl.env.env import tools_of
from agentrl.errors import CallError


class Place(BaseModel):
    city: str
    country: str = "France"


class Toolbox(Env):
    @tool
    async def search(self, query: str, limit: int = 3) -> str:
        """Search the encyclopedia.

        Returns the best passages.

        Args:
            query: What to look for,
                in plain words.
            limit: At most this many passages.
        """
        return ""

    @tool(name="close", timeout=5.0, parallel=False)
    def shut(
        self, door: Literal["front", "back"], note: Annotated[str | None, Field(description="Why.")] = None
    ) -> None:
        """Close a door."""

    @tool
    def travel(self, to: Place, stops: list[str]) -> str:
        return f"{to.city} via {stops}"


def parameters(name: str) -> dict:
    return tools_of(Toolbox)[name].spec["function"]["parameters"]


def test_schema_from_hints_and_docstring():
    assert tools_of(Toolbox)["search"].spec == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the encyclopedia.\n\nReturns the best passages.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for, in plain words."},
                    "limit": {"type": "integer", "description": "At most this many passages.", "default": 3},
                },
                "required": ["query"],
            },
        },
    }


def test_options_literals_and_nested_models():
    shut = tools_of(Toolbox)["close"]
    assert (shut.attribute, shut.timeout, shut.parallel) == ("shut", 5.0, False)
    assert parameters("close")["properties"]["door"] == {"enum": ["front", "back"], "type": "string"}
    assert parameters("close")["properties"]["note"]["description"] == "Why."
    assert parameters("travel")["$defs"]["Place"]["required"] == ["city"]
    assert list(tools_of(Toolbox)) == ["search", "close", "travel"]


def test_arguments_are_validated_and_converted():
    found = tools_of(Toolbox)["travel"].validate({"to": {"city": "Lyon"}, "stops": ["Dijon"]})
    assert found == {"to": Place(city="Lyon"), "stops": ["Dijon"]}
    assert tools_of(Toolbox)["search"].validate({"query": "x"}) == {"query": "x", "limit": 3}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "query: field required"),
        ({"query": "x", "top": 3}, "top: extra inputs are not permitted"),
        ({"query": 3}, "query: input should be a valid string"),
        ({"query": "x", "limit": "many"}, "limit: input should be a valid integer"),
    ],
)
def test_wrong_arguments_say_what_is_wrong_and_what_is_known(arguments, says):
    with pytest.raises(ToolError, match=r"invalid arguments for search: .*\(it takes: query, limit\)") as caught:
        tools_of(Toolbox)["search"].validate(arguments)
    assert says in str(caught.value)


def test_tools_are_inherited_and_overridden():
    class More(Toolbox):
        @tool
        async def search(self, words: list[str]) -> str:
            """Search better."""
            return ""

        travel = None  # type: ignore[assignment]

    assert list(tools_of(More)) == ["search", "close"]
    assert "words" in tools_of(More)["search"].spec["function"]["parameters"]["properties"]


def test_an_argument_without_a_hint_is_refused_when_the_class_is_made():
    with pytest.raises(ConfigError, match=r"tool Bad\.search: argument 'query' has no type hint; write `query: str`"):

        class Bad(Env):
            @tool
            async def search(self, query):  # type: ignore[no-untyped-def]
                """Search."""


def test_star_arguments_unknown_hints_and_unspeakable_types_are_refused():
    with pytest.raises(ConfigError, match=r"\*rest has no JSON schema"):

        class Star(Env):
            @tool
            async def f(self, *rest: str) -> None: ...

    with pytest.raises(ConfigError, match="cannot be resolved"):

        class Missing(Env):
            @tool
            async def f(self, x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="no JSON schema for its arguments"):

        class Opaque(Env):
            @tool
            async def f(self, x: object | Env) -> None: ...


def test_a_tool_may_not_hide_a_hook_or_another_tool():
    with pytest.raises(ConfigError, match=r"a tool method named .close. hides Env\.close"):

        class Hides(Env):
            @tool
            async def close(self) -> None: ...  # type: ignore[override]

    with pytest.raises(ConfigError, match="two tools named 'search'"):

        class Twice(Toolbox):
            @tool(name="search")
            async def search_again(self, query: str) -> str:
                return ""


class Titled(BaseModel):
    title: str
    inner: list[Titled] = []


class Color(Enum):
    RED = "red"


def test_titles_cost_nothing_at_any_depth():
    class Places(Env):
        @tool
        async def go(self, title: str, to: Titled, by: Color | None = None, at: dict[str, Titled] | None = None) -> str:
            """Go.

            Args:
                title: What it is called.
            """
            return title

    parameters = tools_of(Places)["go"].spec["function"]["parameters"]
    assert list(parameters["properties"]) == ["title", "to", "by", "at"]
    assert parameters["properties"]["title"] == {"type": "string", "description": "What it is called."}
    assert list(parameters["$defs"]["Titled"]["properties"]) == ["title", "inner"]
    assert json.dumps(parameters).count('"title"') == 4, "two arguments, each in properties and in required"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_default_that_json_cannot_hold_is_refused_when_the_class_is_made(value):
    with pytest.raises(ConfigError, match=r"tool Bounded\.pick: its schema.*most.*default.*(inf|nan); .*such as None"):

        class Bounded(Env):
            @tool
            async def pick(self, most: Any = value) -> str:
                """Pick."""
                return ""


@pytest.mark.parametrize("given", ["1e400", "inf", "nan", math.inf])
def test_infinity_is_no_argument(given):
    class Numbers(Env):
        @tool
        async def pick(self, most: float, more: list[float] | None = None) -> str:
            """Pick."""
            return ""

    for arguments in ({"most": given}, {"most": 1, "more": [given]}):
        with pytest.raises(CallError, match="finite number"):
            tools_of(Numbers)["pick"].validate(arguments)
