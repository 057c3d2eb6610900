"""Play a game twice: through the suite's API, which is the reference, and through the adapter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from agentrl import ConfigError, EnvFactory, Limits, StopReason, Task
from agentrl.render.base import Renderer
from agentrl.testing import rollout, tiny_renderer

TURNS = 30
SEEDS = (1, 2, 3, (1 << 31) + 1)
SLOW_S = 10
"""A game that takes more seconds is played with fewer seeds."""
PATIENCE_S = 180
Row = dict[str, Any]


@dataclass(slots=True)
class Played:
    """An episode that was played through the suite's API."""

    seed: int
    texts: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    done: bool = False


renderer: Callable[[], Renderer] = cache(tiny_renderer)


def half_of(name: str) -> str:
    """The half of its suite to which a game belongs. The adapters were developed with the half "develop"."""
    return "develop" if zlib.crc32(name.encode()) % 2 == 0 else "held"


def run(names: Iterable[str], play: Callable[[str], Row]) -> None:
    """Play all environments in the half that the command line names, and print a row for each environment."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else "all"
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever suites print
    for name in names:
        if wanted in ("all", half_of(name), name):
            row = {"name": name, "half": half_of(name), **_result(play, name)}
            print("ROW " + json.dumps(row), file=out, flush=True)


def _result(play: Callable[[str], Row], name: str) -> Row:
    try:
        with _alarm(PATIENCE_S):
            return play(name)
    except ExcludedError as exc:
        return {"result": f"excluded: {exc}"}
    except Exception as exc:  # noqa: BLE001 - whatever a suite raises is its row
        return {"result": f"failed: {type(exc).__name__}: {' '.join(str(exc).split())[:200]}"}


class ExcludedError(Exception):
    """The suite itself cannot play the game on this machine."""


def play_both(
    env: str, config: dict[str, Any], reference: Callable[[int], Played], make_task: Callable[[int], Task]
) -> Row:
    """Play a game both ways and compare. Raises AssertionError for a difference, ExcludedError if the suite's API
    fails."""
    began = time.perf_counter()
    expected = list[Played]()
    for seed in SEEDS:
        if time.perf_counter() - began > SLOW_S:
            break
        with own_random(seed):
            try:
                expected.append(reference(seed))
            except ExcludedError:
                raise
            except Exception as exc:
                raise ExcludedError(f"its own API raises {type(exc).__name__}: {_short(exc)}") from exc
    for played in expected:
        with own_random(played.seed):
            again = reference(played.seed)
        if again != played:
            raise ExcludedError("its own API is not deterministic under a seed")
    got = asyncio.run(_adapted(env, config, [(make_task(one.seed), one) for one in expected]))
    for one, (reward, stop) in zip(expected, got, strict=True):
        total = sum(one.rewards, 0.0)
        assert reward == total, f"seed {one.seed}: reward {reward}, by its own API {total}"
        assert (stop is StopReason.DONE) == one.done, f"seed {one.seed}: stopped by {stop}"
    return {"result": "passed", "episodes": len(got), "nonzero": sum(reward != 0 for reward, _ in got)}


async def _adapted(env: str, config: dict[str, Any], plays: list[tuple[Task, Played]]) -> list[Any]:
    async with EnvFactory(env, config) as envs:

        async def one(task: Task, played: Played) -> Any:
            turns = list(played.texts)
            t = await rollout(envs.make(), task, turns, renderer=renderer(), limits=Limits(turns=len(turns)))
            assert t.failure is None, t.failure and t.failure.error
            return t.reward, t.stop

        return await asyncio.gather(*(one(*play) for play in plays))


def refused(env: str, config: dict[str, Any]) -> str | None:
    """Why the adapter refuses a game before the first episode. None if the adapter accepts the game."""

    async def begin() -> None:
        async with EnvFactory(env, config):
            pass

    try:
        asyncio.run(begin())
    except ConfigError as exc:
        return str(exc)
    return None


@contextlib.contextmanager
def own_random(seed: int) -> Iterator[None]:
    """Seed the global random generators within `with`, and restore their states afterwards."""
    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextlib.contextmanager
def untouched_random() -> Iterator[None]:
    """Restore the global random state after `with`, so that a player's random numbers do not change those of the
    game."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)


def player(seed: int) -> Random:
    return Random(f"player {seed}")


def _short(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:100]


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
