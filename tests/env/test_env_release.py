"""What an Env opens is closed: by the task and the thread that opened it, within one deadline, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from contextlib import asynccontextmanager
from contextvars import ContextVar

import anyio
import pytest

from agentrl import Env, EnvFactory, InfraError, Limits, StepResult, StopReason, Task, tool
from agentrl.engine import ScriptedEngine
from agentrl.env.env import begin_env, close_env, runtime
from agentrl.rollout import Rollout, run_groups
from agentrl.testing import call, rollout

TASK = Task(prompt="Go")


class Steps(Env):
    async def step(self, action):
        return StepResult(reward=1.0, done=True)


def begun(cls: type[Env], **limits: float) -> Env:
    env = cls()
    begin_env(env, TASK, Limits(**limits))
    return env


@asynccontextmanager
async def with_a_task_group(log: list[str] | None = None, fails: asyncio.Event | None = None):
    """As stdio_client and ClientSession of the MCP package do it."""

    async def work():
        if fails is not None:
            await fails.wait()
            raise OSError("the server died")
        await anyio.sleep(3600)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        try:
            yield group
        finally:
            if log is not None:
                log.append("left")
            group.cancel_scope.cancel()


class Owner(Steps):
    async def reset(self, task):
        self.group = await self.enter(with_a_task_group())
        return "Go"


async def groups_of(env: type[Env], renderer, **options):
    async with EnvFactory(env) as envs:
        engine = ScriptedEngine(["Done."], renderer)
        given = Rollout(envs=envs, engine=engine, renderer=renderer, **options)
        return [t for group in await run_groups(given, [TASK] * 4, 4) for t in group]


async def test_a_resource_with_its_own_task_group(renderer):
    played = await groups_of(Owner, renderer)
    assert [(t.reward, t.info) for t in played] == [(1.0, {})] * 16
    assert asyncio.current_task().cancelling() == 0


async def test_a_task_group_that_reset_enters_and_close_exits_by_hand(renderer):
    class ByHand(Steps):
        async def reset(self, task):
            self.stack = contextlib.AsyncExitStack()
            await self.stack.enter_async_context(with_a_task_group())
            return "Go"

        async def close(self):
            await self.stack.aclose()

    assert [(t.reward, t.info) for t in await groups_of(ByHand, renderer)] == [(1.0, {})] * 16


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_task_group_that_fails_in_an_episode_is_not_the_hosts_cancellation(renderer, by_hand):
    class Dies(Steps):
        async def reset(self, task):
            self.fails = asyncio.Event()
            resource = self.resource = with_a_task_group(fails=self.fails)
            await (resource.__aenter__() if by_hand else self.enter(resource))
            return "Go"

        async def step(self, action):
            self.fails.set()
            await asyncio.sleep(0.01)
            return StepResult(reward=1.0, done=True)

    async with EnvFactory(Dies) as envs:
        t = await rollout(envs.make(), TASK, ["x"], renderer=renderer)
    if by_hand:
        assert (t.stop, t.failure.kind, t.failure.boundary) == (StopReason.FAILED, "environment", "step")
    else:
        assert t.reward == 1.0
        assert "ExceptionGroup" in t.info["close_error"]
    assert asyncio.current_task().cancelling() == 0


async def test_share_is_entered_and_exited_in_one_task():
    tasks = []

    class Shares(Steps):
        @classmethod
        @asynccontextmanager
        async def share(cls, config):
            tasks.append(asyncio.current_task())
            async with anyio.create_task_group():
                yield 1
            tasks.append(asyncio.current_task())

    envs = EnvFactory(Shares)
    await asyncio.create_task(envs.__aenter__())
    await asyncio.create_task(envs.__aexit__(None, None, None))
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("when", ["while it opens", "as it has opened"])
async def test_what_share_opened_is_closed_if_entering_is_cancelled(when):
    """Nobody calls __aexit__ then, and a resource waits a minute for its owner at the end of the event loop."""
    log, opening = [], asyncio.Event()

    class Shares(Steps):
        @classmethod
        @asynccontextmanager
        async def share(cls, config):
            opening.set()
            if when == "while it opens":
                with contextlib.suppress(asyncio.CancelledError):  # as a library does that waits for its thread
                    await asyncio.sleep(3600)
            log.append("opened")
            try:
                yield 1
            finally:
                log.append("closed")

    entering = asyncio.create_task(EnvFactory(Shares).__aenter__())
    await opening.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(entering, 5)
    assert log == ["opened", "closed"]


async def test_closing_that_fails_does_not_hide_the_cancellation(caplog):
    opening = asyncio.Event()

    class Shares(Steps):
        @classmethod
        @asynccontextmanager
        async def share(cls, config):
            opening.set()
            yield 1
            raise OSError("the index is locked")

    entering = asyncio.create_task(EnvFactory(Shares).__aenter__())
    await opening.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert "the index is locked" in caplog.text


async def test_an_env_outlives_the_task_of_its_episode():
    log = []

    class Kept(Steps):
        async def reset(self, task):
            await self.enter(with_a_task_group(log))

    env = begun(Kept)
    await asyncio.create_task(runtime(env).hook(env.reset, TASK))
    assert log == []
    assert await asyncio.create_task(close_env(env)) is None
    assert log == ["left"]


async def test_opening_that_is_cancelled_is_cleaned_up_before_the_caller_goes_on():
    log = []

    @asynccontextmanager
    async def slow():
        try:
            log.append("opening")
            await asyncio.sleep(3600)
            yield
        finally:
            await asyncio.sleep(0.01)
            log.append("cleaned")

    class Opens(Steps):
        async def reset(self, task):
            await self.enter(slow())

    env = begun(Opens)
    with pytest.raises(TimeoutError, match=r"Opens\.reset took longer than 0\.02 s"):
        await runtime(env).hook(env.reset, TASK, timeout=0.02)
    assert log == ["opening", "cleaned"]
    assert await close_env(env) is None


async def test_tools_enter_resources_at_the_same_time_and_the_newest_leaves_first():
    log, both = [], asyncio.Barrier(2)

    @asynccontextmanager
    async def resource(name):
        await both.wait()
        log.append(f"in {name}")
        yield name
        log.append(f"out {name}")

    class Two(Env):
        @tool
        async def take(self, name: str) -> str:
            return await self.enter(resource(name))

    turn = {
        **call("take", name="a"),
        "tool_calls": [*call("take", name="a")["tool_calls"], *call("take", name="b")["tool_calls"]],
    }
    await rollout(Two(), TASK, [turn, "Done."])
    assert [entry.split()[0] for entry in log] == ["in", "in", "out", "out"]
    assert [entry[-1] for entry in log[2:]] == [entry[-1] for entry in log[:2]][::-1]


VARIABLE = ContextVar("variable", default="unset")


async def test_context_variables_that_a_resource_sets_are_seen_by_hooks_and_reset_at_its_end():
    @asynccontextmanager
    async def span():
        token = VARIABLE.set(f"{VARIABLE.get()} and inside")
        yield
        VARIABLE.reset(token)

    class Traced(Steps):
        async def reset(self, task):
            VARIABLE.set("outside")
            await self.enter(span())

        def step(self, action):
            return VARIABLE.get()

    env = begun(Traced)
    await runtime(env).hook(env.reset, TASK)
    assert await runtime(env).hook(lambda: VARIABLE.get()) in ("unset", "outside and inside")

    async def read():
        return VARIABLE.get()

    assert await runtime(env).hook(read) == "outside and inside"
    assert await close_env(env) is None
    assert VARIABLE.get() == "unset"


async def test_the_thread_lives_until_the_resources_that_need_it_have_left():
    closed = []

    class Database(Env):
        async def reset(self, task):
            self.db = await self.enter(self.connection())
            return "Go"

        @asynccontextmanager
        async def connection(self):
            made = await self.call(sqlite3.connect, ":memory:")  # sqlite refuses any other thread
            yield made
            await self.call(made.close)
            closed.append(made)

        def step(self, action):
            return StepResult(reward=float(self.db.execute("select 1").fetchone()[0]), done=True)

    t = await rollout(Database(), TASK, ["x"])
    assert (t.reward, t.info, len(closed)) == (1.0, {}, 1)


async def test_a_close_behind_a_hook_that_blocks_runs_when_that_is_over():
    go, closed = threading.Event(), threading.Event()

    class Blocked(Steps):
        def reset(self, task):
            go.wait()

        def close(self):
            closed.set()

    t = await rollout(Blocked(), TASK, ["x"], limits=Limits(reset_s=0.02, close_s=0.02))
    assert "waited for an earlier call" in t.info["close_error"]
    assert not closed.is_set()
    go.set()
    assert await asyncio.to_thread(closed.wait, 5)


async def test_one_deadline_over_close_and_all_resources(caplog):
    log = []

    @asynccontextmanager
    async def dead(name):
        yield
        log.append(name)
        await asyncio.sleep(3600)

    @asynccontextmanager
    async def alive():
        yield
        log.append("alive")

    class DeadHost(Steps):
        async def reset(self, task):
            await self.enter(alive())
            await self.enter(dead("a"))
            await self.enter(dead("b"))
            return "Go"

    started = time.monotonic()
    t = await rollout(DeadHost(), TASK, ["x"], limits=Limits(close_s=0.1))
    assert time.monotonic() - started < 5
    assert t.reward == 1.0
    assert "dead, " in t.info["close_error"]
    assert "not released within close_s, 0.1 s; still open" in t.info["close_error"]
    assert log == ["b", "a", "alive"], "each is asked to leave, in order"
    assert "closing DeadHost failed" in caplog.text
    await no_tasks_left()


@pytest.mark.thorough
async def test_a_host_that_cancels_waits_no_longer_than_the_deadline_either():
    @asynccontextmanager
    async def stubborn():
        yield
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    class Stubborn(Steps):
        async def reset(self, task):
            await self.enter(stubborn())
            await self.enter(stubborn())
            self.config["waits"].set()
            await asyncio.sleep(3600)

        config: dict

    config = {"waits": asyncio.Event()}
    playing = asyncio.create_task(rollout(Stubborn(config), TASK, ["x"], limits=Limits(close_s=0.05)))
    await config["waits"].wait()
    started = time.monotonic()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert time.monotonic() - started < 1
    await no_tasks_left()


async def test_a_hook_that_ignores_its_cancellation_is_left_behind_and_close_still_runs():
    closed, over = [], asyncio.Event()

    class Deaf(Steps):
        async def reset(self, task):
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()

        async def close(self):
            closed.append(1)

    t = await rollout(Deaf(), TASK, ["x"], limits=Limits(reset_s=0.02, close_s=0.05))
    assert (t.stop, t.failure.kind, closed) == (StopReason.FAILED, "environment", [1])
    over.set()
    await no_tasks_left()


async def test_a_thread_that_cannot_start_fails_that_call_alone(monkeypatch):
    class Plain(Env):
        def step(self, action):
            return StepResult(reward=1.0, done=True)

    env = begun(Plain)
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
        )
        with pytest.raises(InfraError, match="env-Plain: can't start new thread"):
            await runtime(env).hook(env.step, None)
    assert (await runtime(env).hook(env.step, None)).reward == 1.0
    assert await close_env(env) is None


async def test_a_closed_env_starts_no_thread_again():
    env = begun(Steps)
    await close_env(env)
    with pytest.raises(RuntimeError, match="env-Steps is closed"):
        await env.call(time.sleep, 0)


def test_a_loop_that_ends_leaves_its_envs_to_their_owner():
    log = []

    @asynccontextmanager
    async def resource(name):
        yield
        log.append(name)  # without `finally`: only an orderly exit gets here

    class Kept(Steps):
        async def reset(self, task):
            await self.enter(resource("a"))
            await self.enter(resource("b"))

        async def close(self):
            await asyncio.sleep(0.02)
            log.append("close")

    async def main():
        env = begun(Kept)
        await runtime(env).hook(env.reset, TASK)

        async def owner():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await close_env(env)

        main.owner = asyncio.create_task(owner())
        await asyncio.sleep(0)

    asyncio.run(main())
    assert log == ["close", "b", "a"]


async def no_tasks_left() -> None:
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
