"""An episode in a separate process, where sets have a different order: observations and
rewards must be the same.

python -m agentrl.check.fresh < a pickled FreshOrder > the observations and rewards
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

from agentrl._util.findings import Place
from agentrl.check.playing import EnvUnderTest, play, saying
from agentrl.engine.scripted import Turn
from agentrl.env.env import Env, begin_env, close_env, offered_tools, own_task, runtime
from agentrl.env.factory import EnvFactory, load_env
from agentrl.episode.bad_calls import messages_of, observed
from agentrl.episode.machines import release
from agentrl.episode.parking import resume_method
from agentrl.episode.state import Parked
from agentrl.errors import one_line
from agentrl.types import JSON, Action, Limits, Raw, Task

_CHECK = "determinism"
SHARE_OF_PROCESS = 10
"""`share` and an episode may take at most 1/10 of the check's time."""
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class FreshOrder:
    """The episode that the other process plays: a task and its actions."""

    path: str
    config: Mapping[str, JSON]
    task: Task
    actions: Sequence[Action]
    saved: Any
    """The snapshot after the first action; None without a snapshot."""
    rng: Any
    """The state of the Env's random number generator at the snapshot."""
    changed: Task
    """The task at the snapshot: `reset` and the first action may have changed it."""
    limits: Limits
    patience_s: float


async def fresh_process(subject: EnvUnderTest, task: Task, script: Sequence[Turn], config: Mapping[str, JSON]) -> None:
    """Compare observations and rewards here with those of a separate process, from `reset` on and from a snapshot
    on."""
    reason = _why_not(subject)
    if reason:
        subject.report.skip("in a separate process", reason)
        return
    stop = 1 if resume_method(subject.cls) == "snapshot" else None
    whole = await play(subject, task, saying(script))
    parked = (await play(subject, task, saying(script), stop_after=stop)).parked if stop else None
    actions = whole.trajectory.actions if whole.failure is None else ()
    if any(action.error for action in actions):
        actions = ()
    order = FreshOrder(subject.path, config, task, actions, *_saved(parked, task), subject.limits, subject.patience_s)
    try:
        here = await played(order, subject.envs)
        elsewhere = await play_elsewhere(order)
    except Exception as exc:  # noqa: BLE001 - the boundary of another process: pickle, the Env and Python may refuse
        subject.report.skip("in a separate process", one_line(exc))
        return
    finally:
        await release(parked.machines if parked else ())
    _compare(subject, here, elsewhere)
    subject.report.checked["in a separate process"] = f"reset, {len(actions)} turns" + (", restore" if parked else "")


def _why_not(subject: EnvUnderTest) -> str:
    if not subject.path:
        return "only the class is known, not how to import it"
    if subject.is_agent:
        return "an agent takes its turns by itself"
    if subject.cls.seats:
        return "its seats take their turns in one episode, and here hooks are called one by one"
    if not subject.steady:
        return "the same actions get two answers here"
    took, most = subject.share_s + subject.seconds, subject.patience_s / SHARE_OF_PROCESS
    if took > most:
        needs = ceil(took * SHARE_OF_PROCESS) + 1
        return f"share and an episode take {took:.1f} s, and may take {most:g} s; `--seconds {needs}` gives more"
    return ""


def _saved(parked: Parked | None, task: Task) -> tuple[Any, Any, Task]:
    return (None, None, task) if parked is None else (parked.saved, parked.rng, parked.episode.trajectory.task)


async def play_elsewhere(order: FreshOrder) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "7"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agentrl.check.fresh",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(max(_PATIENCE_S, order.patience_s)):
            out, err = await process.communicate(pickle.dumps((order.path, pickle.dumps(order))))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # `wait` would not return while unread output fills a pipe
    if process.returncode:
        raise RuntimeError(err.decode(errors="replace").strip().splitlines()[-1])
    answers: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answers


def _compare(subject: EnvUnderTest, here: Mapping[str, Any], elsewhere: Mapping[str, Any]) -> None:
    from agentrl.check.repeating import difference
    from agentrl.check.undetermined import undetermined_calls

    report, author = subject.report, subject.author
    if here["broken"] != elsewhere["broken"]:
        place = Place(*elsewhere["place"]) if elsewhere["place"] else author.of_member("restore", "reset")
        report.error(
            _CHECK, place, f"in a separate process: {elsewhere['broken'] or 'no failure'}", "keep nothing else"
        )
        return
    calls = [call for call in undetermined_calls(author) if call[1] in ("hash", "id")]
    begin, rest = difference(here["first"], elsewhere["first"]), difference(here["answers"], elsewhere["answers"])
    if begin:
        place, message = (
            (calls[0][0] if calls else author.of_member("reset")),
            f"reset shows one task in two ways: {begin}",
        )
    elif rest and subject.cls.deterministic:
        place, message = (
            (calls[0][0] if calls else author.of_member("step", "exec_tool")),
            f"the same actions get {rest}",
        )
    elif answers := difference(here["restored"], elsewhere["restored"]):
        place, message = author.of_member("snapshot"), f"a restored episode answers {answers}"
    else:
        return
    report.error(
        _CHECK,
        place,
        f"another process, with the same seed: {message}",
        "sort what comes out of a set; hash and id differ",
    )


async def played(order: FreshOrder, envs: EnvFactory) -> dict[str, Any]:
    """The observations and rewards of an Env in the ordered episode. Only the Env's hooks are called."""
    answers: dict[str, Any] = {"first": [], "answers": [], "restored": [], "broken": "", "place": None}
    try:
        env = envs.make()
        try:
            begin_env(env, own_task(order.task), order.limits)
            answers["first"] = _said(await runtime(env).hook(env.reset, env.task))
            answers["first"] += [json.dumps(await offered_tools(env))]
            answers["answers"] = [text for action in order.actions for text in await _answer(env, action)]
        finally:
            await close_env(env)
        if order.saved is not None:
            answers["restored"] = await _restored(order, envs)
    except Exception as exc:  # noqa: BLE001 - the boundary of the Env: both processes must fail alike
        answers["broken"] = one_line(exc)
    return answers


async def _restored(order: FreshOrder, envs: EnvFactory) -> list[str]:
    env = envs.make()
    try:
        begin_env(env, own_task(order.changed), order.limits)
        rng: Random = runtime(env).rng
        rng.setstate(order.rng)
        await runtime(env).hook(env.restore, order.saved)
        return [text for action in order.actions[1:] for text in await _answer(env, action)]
    finally:
        await close_env(env)


async def _answer(env: Env, action: Action) -> list[str]:
    result = await runtime(env).hook(env.step, action)
    nothing = result.done and not result.observation
    return [*([] if nothing else _said(result.observation)), f"reward {result.reward}, done {result.done}"]


def _said(observation: Any) -> list[str]:
    seen = observed(observation, "reset")
    return [seen.text] if isinstance(seen, Raw) else [str(message.get("content")) for message in messages_of(seen)]


async def _main() -> None:
    raw = sys.stdin.buffer.read()
    order: FreshOrder = _read(raw)
    async with EnvFactory(order.path, order.config) as envs:
        sys.stdout.write("\n" + json.dumps(await played(order, envs)) + "\n")


def _read(raw: bytes) -> FreshOrder:
    """Read the order. The Env's file is imported first, because the order may hold instances of the file's classes."""
    path, order = pickle.loads(raw)
    load_env(path)
    parsed: FreshOrder = pickle.loads(order)
    return parsed


if __name__ == "__main__":
    asyncio.run(_main())
