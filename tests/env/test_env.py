"""Env hooks: concurrency, threads, deadlines, errors; how an Env is found and configured."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel

from agentrl import (
    Action,
    ConfigError,
    Env,
    EnvFactory,
    InfraError,
    Limits,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
    tool,
    tool_specs,
    tools_of,
)
from agentrl.env.env import begin_env, runtime
from agentrl.env.factory import load_env
from agentrl.testing import rollout


class Tools(Env):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.running = self.most = 0
        self.threads: set[int] = set()

    @tool
    async def wait(self, seconds: float) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(seconds)
        self.running -= 1
        return f"waited {seconds}"

    @tool(parallel=False)
    async def alone(self, seconds: float) -> str:
        return await self.wait(seconds)

    @tool
    def block(self, seconds: float) -> str:
        self.threads.add(threading.get_ident())
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(seconds)
        self.running -= 1
        return "blocked"

    @tool(timeout=0.05)
    async def slow(self) -> str:
        await asyncio.sleep(60)
        return "never"

    @tool
    async def fail(self, how: str) -> str:
        raise {"tool": ToolError("try another door"), "infra": InfraError("retriever down"), "bug": KeyError("x")}[how]

    @tool
    async def finish(self, value: float) -> ToolResult:
        return ToolResult({"handed": "in"}, reward=value, done=True)


def begun(cls: type[Env] = Tools, **limits: float) -> Env:
    env = cls()
    begin_env(env, Task(seed=7), Limits(**limits))
    return env


async def end(env: Env) -> None:
    await runtime(env).close(env.close)


def calls(*named: tuple[str, dict]) -> Action:
    return Action("", "", calls=tuple(ToolCall(f"c{i}", name, args) for i, (name, args) in enumerate(named)))


async def contents(env: Env, *named: tuple[str, dict]) -> list[str]:
    result = await env.run_tools(calls(*named))
    return [message["content"] for message in result.observation]


async def test_calls_run_concurrently_and_are_answered_in_order():
    env = begun()
    result = await env.run_tools(calls(("wait", {"seconds": 0.05}), ("wait", {"seconds": 0.01})))
    assert env.most == 2
    assert result.observation == [
        {"role": "tool", "tool_call_id": "c0", "name": "wait", "content": "waited 0.05"},
        {"role": "tool", "tool_call_id": "c1", "name": "wait", "content": "waited 0.01"},
    ]
    assert (result.done, result.reward) == (False, None)


async def test_the_tools_are_known_before_the_episode():
    mine = {"name": "mine", "parameters": {"type": "object", "properties": {}}}

    class Both(Tools):
        def exec_tool(self, call):
            return "done"

    class Late(Tools):
        def tools(self):
            return []

    task = Task(prompt="?", tools=[mine])
    played = await rollout(Both(), task, ["bye"])
    assert tool_specs(Both, task) == tool_specs(Both(), task) == list(played.tools)
    assert [spec["function"]["name"] for spec in tool_specs(Both)] == [*tools_of(Both)]
    tool_specs(Both)[0]["function"]["name"] = "changed"
    assert "changed" not in str(tool_specs(Both)), "the caller gets copies"
    with pytest.raises(ConfigError, match=r"^Late\.tools decides in each episode"):
        tool_specs(Late)


async def test_tools_marked_alone_and_plain_functions_never_overlap():
    env = begun()
    await contents(env, ("alone", {"seconds": 0.01}), ("alone", {"seconds": 0.01}))
    assert env.most == 1
    await contents(env, ("block", {"seconds": 0.01}), ("block", {"seconds": 0.01}))
    assert env.most == 1
    assert len(env.threads) == 1
    assert threading.get_ident() not in env.threads
    await end(env)


async def test_a_blocking_tool_does_not_stall_the_loop():
    env = begun()
    task = asyncio.create_task(contents(env, ("block", {"seconds": 0.2})))
    ticks = 0
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 5
    await end(env)


async def test_a_failing_tool_answers_the_model(caplog):
    env = begun()
    said = await contents(
        env, ("fail", {"how": "tool"}), ("fail", {"how": "bug"}), ("fail", {"how": "bug"}), ("slow", {}), ("nope", {})
    )
    assert said[:4] == [
        "Error: try another door",
        "Error: KeyError: 'x'",
        "Error: KeyError: 'x'",
        "Error: slow took longer than 0.05 s",
    ]
    assert said[4].startswith("Error: there is no tool 'nope'; the tools are: wait, alone,")
    assert runtime(env).tool_errors == {"fail:KeyError": 2}
    assert caplog.text.count("raised; the model reads the error") <= 1  # the first traceback only


async def test_invalid_and_malformed_calls_are_answered_not_executed():
    env = begun()
    (said,) = await contents(env, ("wait", {"seconds": "long"}))
    assert said.startswith("Error: invalid arguments for wait: seconds: input should be a valid number")
    result = await env.run_tools(Action("", "", calls=(ToolCall("c", "wait", {}, error="not JSON"),)))
    assert result.observation[0]["content"] == "Error: not JSON"
    assert env.most == 0


async def test_a_broken_world_passes_through_and_cancels_the_other_calls():
    env = begun()
    started = time.monotonic()
    with pytest.raises(InfraError, match="retriever down"):
        await contents(env, ("wait", {"seconds": 30}), ("fail", {"how": "infra"}))
    assert time.monotonic() - started < 5


async def test_tool_results_carry_reward_and_done():
    result = await begun().run_tools(calls(("finish", {"value": 0.5}), ("finish", {"value": 0.25})))
    assert (result.reward, result.done) == (0.75, True)
    assert result.observation[0]["content"] == '{"handed": "in"}'
    assert await begun().run_tools(Action("bye", "bye")) == StepResult(done=True)


async def test_default_deadline_of_tools_comes_from_the_limits():
    assert await contents(begun(tool_s=0.02), ("wait", {"seconds": 9})) == ["Error: wait took longer than 0.02 s"]


async def test_hooks_run_in_a_thread_or_on_the_loop_and_under_a_deadline():
    class Mixed(Tools):
        def score(self, trajectory):
            return float(threading.get_ident() != threading.main_thread().ident)

        async def reset(self, task):
            await asyncio.sleep(30)

    env = begun(Mixed)
    assert await runtime(env).hook(env.score, None) == 1.0
    with pytest.raises(TimeoutError, match=r"Mixed\.reset took longer than 0\.01 s"):
        await runtime(env).hook(env.reset, env.task, timeout=0.01)
    await end(env)


async def test_exceptions_cross_the_thread_whole_even_stop_iteration():
    class Odd(Tools):
        def score(self, trajectory):
            raise trajectory

    env = begun(Odd)
    with pytest.raises(ZeroDivisionError, match="here"):
        await runtime(env).hook(env.score, ZeroDivisionError("here"))
    with pytest.raises(RuntimeError, match="StopIteration in a thread"):
        await runtime(env).hook(env.score, StopIteration())
    await end(env)


async def test_resources_are_released_newest_first_also_when_close_fails():
    log: list[str] = []

    @asynccontextmanager
    async def resource(name: str):
        log.append(f"open {name}")
        try:
            yield name
        finally:
            log.append(f"close {name}")

    class Owner(Tools):
        async def reset(self, task):
            assert await self.enter(resource("a")) == "a"
            await self.enter(resource("b"))
            return "go"

        async def close(self):
            log.append("hook")
            raise RuntimeError("close broke")

    env = begun(Owner)
    await runtime(env).hook(env.reset, env.task)
    with pytest.raises(RuntimeError, match="close broke"):
        await end(env)
    assert log == ["open a", "open b", "hook", "close b", "close a"]


def test_an_env_is_single_use_and_its_world_is_seeded():
    env = begun()
    assert env.rng.random() == begun().rng.random()
    with pytest.raises(RuntimeError, match="make a new Env for each episode"):
        begin_env(env, Task(), Limits())


class Config(BaseModel, extra="forbid"):
    corpus: str
    top: int = 3


class Configured(Tools):
    config: Config
    shared: list[str]

    @classmethod
    @asynccontextmanager
    async def share(cls, config: Config):
        opened = [config.corpus]
        yield opened
        opened.append("closed")


async def test_config_is_validated_and_share_is_entered_once():
    async with EnvFactory(Configured, {"corpus": "c.jsonl"}) as envs:
        first, second = envs.make(), envs.make()
        assert first.config.top == 3
        assert first.shared is second.shared
        assert first is not second
    assert first.shared == ["c.jsonl", "closed"]


@pytest.mark.parametrize(
    ("config", "says"),
    [({}, "corpus is missing"), ({"corpus": "c", "tpo": 1}, "unknown key tpo; did you mean top?")],
)
def test_a_wrong_config_names_the_key_and_the_known_ones(config, says):
    with pytest.raises(ConfigError, match=r"env_config of Configured: ") as caught:
        EnvFactory(Configured, config)
    assert says in str(caught.value)


async def test_share_may_be_a_coroutine():
    class Shares(Tools):
        @classmethod
        async def share(cls, config):
            return 42

    async with EnvFactory(Shares) as envs:
        assert envs.make().shared == 42


def test_an_env_without_tools_or_step_is_refused():
    class Empty(Env):
        pass

    with pytest.raises(ConfigError, match="Empty has neither tools nor a step nor a score"):
        EnvFactory(Empty)

    class Steps(Env):
        async def step(self, action):
            return StepResult(done=True)

    EnvFactory(Steps)


def test_envs_are_found_in_files_and_modules(tmp_path, monkeypatch):
    file = tmp_path / "my_env.py"
    (tmp_path / "neighbour_of_my_env.py").write_text("NAME = 'Paris'\n")
    file.write_text(
        "from agentrl import Env, tool\nfrom neighbour_of_my_env import NAME\n"
        "class Capitals(Env):\n    @tool\n    async def f(self, x: int) -> int:\n        return x\n"
    )
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    found = load_env(f"{file}:Capitals")
    assert found.__name__ == "Capitals"
    assert load_env(f"{file}:Capitals") is found
    assert load_env("agentrl.env.env:Env") is Env


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.py:Env", "nowhere.py: no such file"),
        ("agentrl.env.env:Nothing", "agentrl.env.env has no 'Nothing'"),
        ("agentrl.env.env:asyncio", "not a subclass of agentrl.Env"),
        ("no_such_package.env:X", "no module 'no_such_package.env'"),
        (
            "Capitals",
            "no installed environment has the name 'Capitals'; `agentrl envs` lists them, and a class of your own",
        ),
        ("envs/my_env.py:", "does not name an object; write envs/my_env.py:NAME"),
        ("envs/my_env.py", "does not name an object; write envs/my_env.py:NAME"),
    ],
)
def test_a_wrong_path_says_what_is_missing(path, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        load_env(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def broken(:\n", r"bad\.py:1: invalid syntax"),
        ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named(tmp_path, source, says):
    file = tmp_path / "bad.py"
    file.write_text(source)
    with pytest.raises(ConfigError, match=says):
        load_env(f"{file}:X")


def test_a_class_missing_from_a_file_lists_the_envs_there(tmp_path):
    file = tmp_path / "two.py"
    file.write_text("from agentrl import Env\nclass A(Env): ...\nclass B(Env): ...\n")
    with pytest.raises(ConfigError, match=r"has no 'C'; it has: A, B"):
        load_env(f"{file}:C")


async def test_an_env_with_a_score_alone_is_a_question_and_an_answer():
    class Sum(Env):
        def score(self, trajectory):
            return float(trajectory.answer == self.task.label)

    async with EnvFactory(Sum) as envs:
        trajectory = await rollout(envs.make(), Task(prompt="1 + 1?", label="2"), ["2"])
    assert (trajectory.reward, trajectory.stop, len(trajectory.turns)) == (1.0, StopReason.DONE, 1)
