"""Calls of tools: what overlaps what, whose time a wait is, and what a tool may be and give back."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from typing import TYPE_CHECKING

import pytest

from agentrl import (
    Action,
    ConfigError,
    Env,
    EnvFactory,
    Limits,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    tool,
)
from agentrl.env.env import begin_env, close_env, runtime, tools_of
from agentrl.env.tool_calls import new_call, new_call_id
from agentrl.rollout import load_tasks
from agentrl.testing import call, rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK = Task(prompt="Go")


def begun(cls: type[Env], task: Task = TASK, **limits: float) -> Env:
    env = cls()
    begin_env(env, task, Limits(**limits))
    return env


async def contents(env: Env, *named: tuple[str, dict]) -> list[str]:
    calls = tuple(ToolCall(f"c{i}", name, args) for i, (name, args) in enumerate(named))
    result = await env.run_tools(Action("", "", calls=calls))
    return [message["content"] for message in result.observation]


async def test_a_tool_that_is_not_parallel_overlaps_no_other():
    log = []

    class Doors(Env):
        @tool
        async def look(self, n: int) -> str:
            log.append(f"look {n}")
            await asyncio.sleep(0.01)
            log.append("end look")
            return f"saw {n}"

        @tool(parallel=False)
        async def shut(self, n: int) -> str:
            log.append(f"shut {n}")
            await asyncio.sleep(0.01)
            log.append("end shut")
            return f"shut {n}"

    env = begun(Doors)
    said = await contents(env, *((name, {"n": n}) for n, name in enumerate(["look", "look", "shut", "shut", "look"])))
    assert said == ["saw 0", "saw 1", "shut 2", "shut 3", "saw 4"]
    assert log[2:4] == ["end look"] * 2
    assert log[4:] == ["shut 2", "end shut", "shut 3", "end shut", "look 4", "end look"]


class Slow(Env):
    @tool(timeout=0.3)
    def work(self, seconds: float) -> str:
        time.sleep(seconds)
        return "worked"

    @tool(timeout=0.05)
    def stuck(self) -> str:
        self.go.wait()
        return "never"

    go: threading.Event


@pytest.mark.parametrize("own_exec", [False, True])
async def test_the_wait_for_the_thread_is_not_the_tools_time(own_exec):
    class Own(Slow):
        async def exec_tool(self, call):
            return await super().exec_tool(call)

    env = begun(Own if own_exec else Slow)
    assert await contents(env, *[("work", {"seconds": 0.12})] * 5) == ["worked"] * 5
    assert (await contents(env, *[("work", {"seconds": 0.5})] * 1))[0] == "Error: work took longer than 0.3 s"
    assert await close_env(env) is None


async def test_behind_a_call_that_outlives_its_deadline_the_clock_goes_on():
    env = begun(Slow, close_s=0.05)
    env.go = threading.Event()
    said = await contents(env, ("stuck", {}), ("work", {"seconds": 0}))
    assert said == [
        "Error: stuck took longer than 0.05 s",
        "Error: work waited for an earlier call, which still runs, for 0.3 s",
    ]
    waiting = asyncio.create_task(contents(env, ("work", {"seconds": 0})))
    await asyncio.sleep(0)
    env.go.set()
    assert await waiting == ["worked"], "the thread is free again"
    assert await close_env(env) is None


async def test_a_timeout_of_the_tools_own_is_not_its_deadline():
    class Own(Env):
        @tool
        async def fetch(self) -> str:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(1)

    env = begun(Own)
    assert await contents(env, ("fetch", {})) == ["Error: TimeoutError"]
    assert runtime(env).tool_errors == {"fetch:TimeoutError": 1}


class Odd(Env):
    @tool
    @staticmethod
    def above(x: int) -> str:
        """Above."""
        return f"above {x}"

    @staticmethod
    @tool
    async def below(x: int) -> str:
        """Below."""
        return f"below {x}"

    @tool
    @classmethod
    def over(cls, x: int) -> str:
        """Over."""
        return f"{cls.__name__} {x}"

    @classmethod
    @tool
    def under(cls, x: int) -> str:
        """Under."""
        return f"{cls.__name__} {x}"

    @tool
    async def names(self, _q: str, model_config: int, model_dump: list[int], schema: str = "s") -> str:
        """Odd names.

        Args:
            _q: The question.
        """
        return f"{_q} {model_config} {model_dump} {schema}"


async def test_static_and_class_methods_on_either_side_of_tool():
    assert [made.spec["function"]["parameters"] for made in list(tools_of(Odd).values())[:4]] == [
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    ] * 4
    named = [(name, {"x": 1}) for name in ("above", "below", "over", "under")]
    env = begun(Odd)
    assert await contents(env, *named) == ["above 1", "below 1", "Odd 1", "Odd 1"]
    await close_env(env)


async def test_arguments_may_be_called_anything():
    made = tools_of(Odd)["names"]
    properties = made.spec["function"]["parameters"]["properties"]
    assert list(properties) == ["_q", "model_config", "model_dump", "schema"]
    assert properties["_q"] == {"type": "string", "description": "The question."}
    arguments = {"_q": "a", "model_config": 1, "model_dump": [2]}
    assert await contents(begun(Odd), ("names", arguments)) == ["a 1 [2] s"]
    (said,) = await contents(begun(Odd), ("names", {"model_config": 1, "argument_0": "a"}))
    assert "_q: field required" in said
    assert "(it takes: _q, model_config, model_dump, schema)" in said


class Base(Env):
    @tool(name="find", timeout=3.0)
    async def search(self, query: str) -> str:
        """Search the web."""
        return f"base {query}"


async def test_a_tool_that_is_overridden_stays_a_tool():
    class Louder(Base):
        async def search(self, query: str, times: int = 1) -> str:
            return (await super().search(query)).upper() * times

    class Silent(Base):
        search = None

    made = tools_of(Louder)["find"]
    assert (made.spec["function"]["description"], made.timeout) == ("Search the web.", 3.0)
    assert list(made.spec["function"]["parameters"]["properties"]) == ["query", "times"]
    assert await contents(begun(Louder), ("find", {"query": "x", "times": 2})) == ["BASE XBASE X"]
    assert tools_of(Silent) == {}


def generator(self):
    yield 1


async def asynchronous(self):
    yield 1


def bare(): ...


def without_self(place: str): ...


def positional(self, x: int, /): ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (generator, r"tool Bad\.f yields; return its whole result at once"),
        (asynchronous, r"tool Bad\.f yields"),
        (bare, r"tool Bad\.f takes no `self`; add it, or use @staticmethod"),
        (without_self, r"tool Bad\.f takes no `self`"),
        (positional, r"tool Bad\.f: tools are called by argument names; remove the `/` after 'x'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function, says):
    with pytest.raises(ConfigError, match=says):
        type("Bad", (Env,), {"f": tool(function)})


def test_tool_marks_methods_only():
    with pytest.raises(ConfigError, match="@tool marks a method, not <property"):
        tool(property(lambda self: 1))


def test_what_a_tool_returns_may_be_known_to_the_type_checker_alone():
    class Typed(Env):
        @tool
        async def take(self, n: int) -> Sequence[int]:
            """Take."""
            return [n]

    assert list(tools_of(Typed)) == ["take"]


class Returns(Env):
    what: object

    @tool
    async def give(self) -> object:
        return self.what


@pytest.mark.parametrize("what", [b"raw", {(1, 2): 3}, {1, 2}, object(), ToolResult(b"raw", reward=1.0)])
async def test_what_is_no_json_is_the_tools_error(what):
    env = begun(Returns)
    env.what = what
    (said,) = await contents(env, ("give", {}))
    assert said.startswith("Error: TypeError: give returned ")
    assert runtime(env).tool_errors == {"give:TypeError": 1}


async def test_what_refers_to_itself_is_the_tools_error_too():
    env, around = begun(Returns), []
    around.append(around)
    env.what = around
    assert (await contents(env, ("give", {})))[0].startswith("Error: TypeError: give returned list, which JSON")


@pytest.mark.parametrize("reward", ["1.0x", "0.5", 1e39, math.nan, math.inf])
async def test_a_reward_that_is_no_number_is_a_bug_and_names_the_tool(reward):
    env = Returns()
    env.what = ToolResult("text", reward=reward)
    t = await rollout(env, TASK, [call("give"), "Done."])
    assert (t.stop, t.failure.kind) == (StopReason.FAILED, "bug")
    assert "the reward of tool give is " in t.failure.error


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@pytest.mark.parametrize(
    "what",
    [
        IMAGE,
        [{"type": "text", "text": "Here it is."}, IMAGE],
        ToolResult([IMAGE], reward=1.0),
        {"content": [{"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]},
        [{"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}],
        [{"type": "input_audio", "input_audio": {"data": "UklGRg=="}}],
    ],
)
async def test_an_image_is_a_bug_that_names_the_tool(what):
    env = Returns()
    env.what = what
    t = await rollout(env, TASK, [call("give"), "Done."])
    assert (t.stop, t.failure.kind) == (StopReason.FAILED, "bug")
    assert "tool give returned " in t.failure.error
    assert "turn it into text" in t.failure.error or "cannot be shown" in t.failure.error


@pytest.mark.parametrize("what", [[{"type": "image", "alt": "a cat"}], [{"type": "text", "text": "hi"}], {"type": 3}])
async def test_what_is_about_images_is_json(what):
    env = begun(Returns)
    env.what = what
    assert json.loads((await contents(env, ("give", {})))[0]) == what


FLAT = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}


class Executes(Env):
    async def exec_tool(self, call):
        return f"executed {call.name}"


async def test_a_tasks_flat_tool_is_wrapped(tmp_path):
    t = await rollout(Executes(), Task(prompt="Go", tools=[FLAT]), [call("look"), "Done."])
    assert t.tools == ({"type": "function", "function": FLAT},)
    assert t.messages[2]["content"] == "executed look"
    said = await contents(begun(Base, Task(prompt="Go", tools=[{"type": "function", **FLAT}])), ("other", {}))
    assert said == ["Error: there is no tool 'other'; the tools are: find, look"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ('"look"', "d.jsonl:1: 'look' is not a tool; write "),
        ('{"description": "x"}', "d.jsonl:1: {'description': 'x'} is not a tool; write "),
        ('{"function": {"name": 3}}', "is not a tool; write "),
        ('{"name": "look", "parameters": "none"}', 'd.jsonl:1: tool look: "parameters" must be a JSON schema'),
    ],
)
def test_a_tool_of_a_row_that_is_none_is_refused_with_its_line(tmp_path, spec, says):
    (tmp_path / "d.jsonl").write_text(f'{{"prompt": "Go", "tools": [{spec}]}}\n')
    with pytest.raises(ConfigError) as caught:
        load_tasks(tmp_path / "d.jsonl", split="train")
    assert says in str(caught.value)


async def test_a_rows_own_tool_that_nobody_executes_is_refused_before_the_run(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": "Go"}\n{"prompt": "Go", "tools": [{"name": "look"}]}\n')
    with pytest.raises(ConfigError, match=r"d\.jsonl:2: Base cannot execute the tool 'look' .*write exec_tool\(call\)"):
        load_tasks(tmp_path / "d.jsonl", split="train", check=EnvFactory(Base).check)
    with pytest.raises(ConfigError, match="Base cannot execute the tool 'look'"):
        await rollout(Base(), Task(prompt="Go", tools=[FLAT]), ["x"])

    class Steps(Base):
        async def step(self, action):
            return StepResult(done=True)

    for cls in (Executes, Steps):
        assert len(load_tasks(tmp_path / "d.jsonl", split="train", check=EnvFactory(cls).check)) == 2


def test_made_ids_of_calls_stay_the_same_from_version_to_version():
    """They are in recorded episodes and in prompt caches."""
    assert call("f", a=1, b="ä")["tool_calls"][0]["id"] == "ccb272315"
    assert new_call("g", {"a": [1]}, "7 ")["id"] == "cc4a4a67a"
    assert new_call_id("0 {'function': {'name': 'g'}}") == "ca001204d"
