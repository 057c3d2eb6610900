"""What hooks and resources do that nobody should."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from agentrl import Env, InfraError, StepResult
from agentrl_sandbox import LocalSandbox

BLOCKED_S = 3.0
"""Longer than any limit of a hook."""
SLEEP = f"7654.{os.getpid()}"
"""By its length one knows a `sleep` of this process's tests."""


def raises(error: Callable[[], BaseException]) -> Callable[..., Any]:
    async def hook(env, *given):
        raise error()

    return hook


def raises_in_thread(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def hook(env, *given):
        raise error()

    return hook


def gives(make: Callable[[Env], Any]) -> Callable[..., Any]:
    async def hook(env, *given):
        return make(env)

    return hook


async def hangs(env, *given):
    await asyncio.sleep(3600)


def blocks(env, *given):
    threading.Event().wait(BLOCKED_S)


async def is_deaf(env, *given):
    """Ignores its cancellation, for a while."""
    end = time.monotonic() + BLOCKED_S + 1.5
    while time.monotonic() < end:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)


async def cancels_itself(env, *given):
    asyncio.current_task().cancel()
    await asyncio.sleep(3600)


async def waits_for_what_was_cancelled(env, *given):
    task = asyncio.create_task(asyncio.sleep(3600))
    task.cancel()
    await task


async def asks_two_of_which_one_is_down(env, *given):
    async def down():
        raise ConnectionRefusedError("the retriever is down")

    async with asyncio.TaskGroup() as group:
        group.create_task(down())
        group.create_task(asyncio.sleep(3600))


class MuteError(InfraError):
    def __str__(self):
        return self.detail  # there is none


def entering(resource: Callable[..., Any]) -> Callable[..., Any]:
    async def reset(env, task):
        await env.enter(resource(env))
        return task.prompt

    return reset


@asynccontextmanager
async def with_a_group(env):
    async with env.shared.held(), anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 3600)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def whose_group_dies(env):
    async def dies():
        raise OSError("the server died")

    async with env.shared.held(), anyio.create_task_group() as group:
        group.start_soon(dies)
        yield
        await anyio.sleep(0.01)


@asynccontextmanager
async def that_does_not_open(env):
    async with env.shared.held(), anyio.create_task_group():
        raise InfraError("no room")
    yield


@asynccontextmanager
async def that_opens_for_ever(env):
    async with env.shared.held():
        await asyncio.sleep(3600)
        yield


@asynccontextmanager
async def on_a_dead_host(env):
    async with env.shared.held():
        yield
        await asyncio.sleep(3600)


@asynccontextmanager
async def that_does_not_close(env):
    async with env.shared.held():
        yield
        raise OSError("still in use")


async def a_group_by_hand(env, task):
    env.group = anyio.create_task_group()
    await env.group.__aenter__()
    env.group.start_soon(anyio.sleep, 3600)
    return task.prompt


async def ends_it_by_hand(env):
    env.group.cancel_scope.cancel()
    await env.group.__aexit__(None, None, None)


async def a_dying_group_by_hand(env, task):
    async def dies():
        raise OSError("the server died")

    env.group = anyio.create_task_group()
    await env.group.__aenter__()
    env.group.start_soon(dies)
    await asyncio.sleep(3600)


async def a_sandbox(env, task):
    env.box = await env.enter(LocalSandbox(trusted=True))
    await env.box.exec(f"sleep {SLEEP} > /dev/null 2>&1 & env -i setsid sleep {SLEEP} > /dev/null 2>&1 &")
    return task.prompt


async def a_closed_sandbox(env, action):
    async with LocalSandbox(trusted=True) as box:
        pass
    await box.exec("true")


def a_database(env, task):
    env.db = sqlite3.connect(":memory:")
    return task.prompt


def asks_the_database(env, action):
    return StepResult(reward=float(env.db.execute("select 1").fetchone()[0]), done=True)


def closes_the_database(env):
    env.db.close()


async def a_box_and_a_file(env, task):
    await env.enter(env.shared.box())
    env.file = await env.enter(a_file(env))
    return task.prompt


@asynccontextmanager
async def a_file(env):
    with open(os.devnull, "rb") as file:  # noqa: ASYNC230
        async with env.shared.held():
            yield file


async def fails_the_first_time(env, action):
    tries = env.shared.tries
    name = env.task.metadata.get("number", env.task.id)
    tries[name] = tries.get(name, 0) + 1
    if tries[name] == 1:
        raise InfraError("this time")
    return await type(env).step(env, action)


def twice_itself() -> list[Any]:
    ring: list[Any] = []
    ring += [ring, ring]
    return ring


def doubled(depth: int) -> list[Any]:
    found: list[Any] = ["x"]
    for _ in range(depth):
        found = [found, found]
    return found


async def grows_its_list(env, action):
    """Gives a list that it goes on using."""
    env.said = getattr(env, "said", [])
    env.said += [{"role": "user", "content": f"once {len(env.said)}"}]
    over = len(env.said) == 2
    return StepResult(env.said[-1:], reward=1.0 if over else None, done=over)


async def notes_in_the_trajectory(env, trajectory):
    trajectory.info["path"] = Path("x")
    trajectory.task.metadata["handle"] = object()
    return 1.0
