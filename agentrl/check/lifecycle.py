"""Check `close` without an earlier `reset`, and two calls of `close`."""

from __future__ import annotations

import inspect
from typing import Any

from agentrl.check.playing import EnvUnderTest, Speak, play
from agentrl.env.env import Env, begin_env, own_task, runtime
from agentrl.errors import leaves, one_line
from agentrl.types import Task

_CHECK = "lifecycle"


async def lifecycle(subject: EnvUnderTest, task: Task, speak: Speak) -> None:
    """Report mistakes in `make` and `close`."""
    env, other = subject.envs.make(), subject.envs.make()
    if env is other:
        subject.report.error(
            _CHECK,
            subject.author.of_member("__new__"),
            "two episodes get the same object",
            "return a new Env each time: an Env plays one episode",
        )
        return
    await _close_without_reset(subject, env, task)
    await _close(other)
    if subject.author.wrote("close"):
        await _close_twice(subject, task, speak)
        subject.report.checked[_CHECK] = "close after no reset, and twice"
    else:
        subject.report.checked[_CHECK] = "close after no reset"


async def _close_without_reset(subject: EnvUnderTest, env: Env, task: Task) -> None:
    """Check that an episode that is cancelled before its `reset` is closed, too."""
    begin_env(env, own_task(task), subject.limits)
    error = await _close(env)
    if error is not None:
        subject.report.error(
            _CHECK,
            subject.author.of_error(error) or subject.author.of_member("close"),
            f"close fails where reset has not run: {_told(error)}",
            "close only what exists: give it a value in the class (`box = None`), or use `await self.enter(...)`",
        )


async def _close(env: Env) -> Exception | None:
    try:
        await runtime(env).close(env.close)
    except Exception as exc:  # noqa: BLE001 - the boundary of `close`: what it raises is the finding
        return exc
    return None


async def _close_twice(subject: EnvUnderTest, task: Task, speak: Speak) -> None:
    second: list[Exception] = []

    def prepare(env: Env) -> None:
        close: Any = env.close

        async def twice() -> None:
            await close()
            try:
                await close()
            except Exception as exc:  # noqa: BLE001 - as above
                second.append(exc)

        def twice_in_thread() -> None:
            close()
            try:
                close()
            except Exception as exc:  # noqa: BLE001 - as above
                second.append(exc)

        setattr(env, "close", twice if inspect.iscoroutinefunction(close) else twice_in_thread)  # noqa: B010

    episode = await play(subject, task, speak, prepare=prepare)
    for error in episode.close_errors[:1]:
        subject.report.error(
            _CHECK,
            subject.author.of_error(error) or subject.author.of_member("close"),
            f"close fails after an episode: {_told(error)}",
            "fix close: a resource that it does not release stays open",
        )
    for error in second[:1]:
        subject.report.error(
            _CHECK,
            subject.author.of_error(error) or subject.author.of_member("close"),
            f"a second close fails: {_told(error)}",
            "forget the closed resource (`self.box = None`), or use `await self.enter(...)`",
        )


def _told(error: Exception) -> str:
    return "; ".join(map(one_line, leaves(error)))
