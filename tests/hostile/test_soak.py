"""Hundreds of episodes of an Env that gets wrong what can be: each has its cause recorded, and nothing is left.

AGENTRL_SOAK is the number of episodes (`make soak`: 1,000)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from agentrl import Env, EnvFactory, EpisodeOptions, InfraError, Limits, Task, Trajectory
from agentrl.engine import Engine, ScriptedEngine
from agentrl.engine.local import LocalEngine, lockstep
from agentrl.models import load_model
from agentrl.rollout.play.episodes import BugError, Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.train import TrainConfig, train
from tests.hostile.env import LIMITS, Hostile
from tests.hostile.faults import BUGS, ODDITIES, ONCE, WORLD, prompt, script
from tests.hostile.leaks import Before, no_tasks_left
from tests.hostile.records import Record, rows, wrong

EPISODES = int(os.environ.get("AGENTRL_SOAK", "120"))
AT_ONCE = 96
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc"),
    pytest.mark.timeout(120 + EPISODES),
]
NOT_SAMPLED = {name for name, fault in {**WORLD, **ODDITIES}.items() if fault.says is None}
"""Faults to which it makes no difference what a model says."""


class Speaker(ScriptedEngine):
    """Says what the fault wants, whatever the weights are."""

    def __init__(self, renderer: Any) -> None:
        super().__init__(lambda ids: script(renderer.decode(ids)), renderer)

    async def update(self, model: Any, version: str) -> None: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


@pytest.fixture
def before(tmp_path, monkeypatch) -> Before:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return Before(folder)


async def play(
    engine: Engine, renderer: Any, names: Sequence[str], *, count: int, env: type[Env] = Hostile, **options: Any
) -> list[Trajectory]:
    tasks = [Task(**row) for row in rows(names, count)]
    limits = Limits(**{**LIMITS, **options.pop("limits", {})})
    given = EpisodeOptions(limits=limits)
    try:
        async with EnvFactory(env, options) as envs:
            rollout = Rollout(envs=envs, engine=engine, renderer=renderer, options=given, concurrency=AT_ONCE)
            return [t for group in await run_groups(rollout, tasks, 1) for t in group]
    finally:
        await engine.close()
        await no_tasks_left()


def judge(played: Sequence[Trajectory], count: int, *, at_random: bool = False) -> None:
    """`at_random`: what the model says is, and may look like a call."""
    assert len(played) == count
    said = [one for t in played for one in wrong(t.task.metadata["fault"], Record.of(t), at_random=at_random)]
    assert not said, "\n".join(said)
    for t in played:
        json.dumps(t.to_json(), allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.thorough
def test_run_groups(renderer, before):
    played = asyncio.run(play(Speaker(renderer), renderer, [*WORLD, *ODDITIES, *ONCE], count=EPISODES))
    judge(played, EPISODES)
    assert {t.session_id[-5:] for t in played if t.task.metadata["fault"] in ONCE} == {"again"}
    before.nothing_left()


@pytest.mark.thorough
def test_run_groups_in_lockstep(tokenizer, renderer, before, monkeypatch):
    monkeypatch.setattr(lockstep, "QUIET_S", 0.5)
    torch.set_num_threads(1)
    engine = LocalEngine(load_model("tiny", seed=1), tokenizer)
    limits = {"max_tokens_per_turn": 60, "episode_s": None}
    names = sorted(NOT_SAMPLED - {"a pool that is too small"})  # a box is kept for all of a wave: rollout/test_pools.py
    count = max(EPISODES // 2, len(names))
    judge(asyncio.run(play(engine, renderer, names, count=count, limits=limits, random=True)), count, at_random=True)
    before.nothing_left()


def run_training(out: Path, lines: list[dict[str, Any]], *, env: type[Env] = Hostile, **given: Any) -> None:
    data = out.with_suffix(".jsonl")
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {
        "env": f"{env.__module__}:{env.__name__}",
        "data": data,
        "out": out,
        "engine": "tests.hostile.test_soak:Speaker",
        "limits": LIMITS,
        "group_size": 2,
        "concurrency": 2 * AT_ONCE,
        "numerics": None,
        "canaries": None,
        "device": "cpu",
        **given,
    }
    train(TrainConfig.make(**config), console=Console(quiet=True))


@pytest.mark.thorough
def test_train(tmp_path, before):
    """As `agentrl train` does it, with updates."""
    names, group = [*WORLD, *ODDITIES], 2
    a_step = max(EPISODES // 10, len(names))
    steps = max(EPISODES // (a_step * group), 1)
    run = partial(run_training, group_size=group)
    run(tmp_path / "first", rows(["nothing"], 2), steps=1, prompts_per_step=2)  # what torch starts once, it keeps
    there = Before(before.folder)
    lines = rows(names, steps * a_step)
    run(tmp_path / "run", lines, steps=steps, prompts_per_step=a_step, keep={"groups": a_step})
    there.nothing_left()
    written = sorted((tmp_path / "run" / "trajectories").glob("step*.jsonl"))
    lines = [line for file in written for line in file.read_text().splitlines()]
    judge([Trajectory.from_json(json.loads(line)) for line in lines], steps * a_step * group)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == steps


class Meddler(Hostile):
    """Changes what belongs to the whole process."""

    async def reset(self, task):
        os.chdir(tempfile.gettempdir())
        torch.set_grad_enabled(False)
        return await super().reset(task)


@pytest.mark.thorough
def test_train_beside_an_env_that_changes_the_process(before, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        run_training(Path("run"), rows(["nothing"], 4), env=Meddler, steps=2, prompts_per_step=2)
    finally:
        torch.set_grad_enabled(True)
    assert {"summary.json", "metrics.jsonl", "model"} <= set(os.listdir(tmp_path / "run"))
    assert os.listdir(before.folder) == []


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_ends_the_run_with_its_cause(renderer, before, name):
    kind, boundary, error = BUGS[name].failure
    with pytest.raises(BugError) as raised:
        asyncio.run(play(Speaker(renderer), renderer, [name], count=1))
    failure = raised.value.failure
    assert (failure.kind, failure.boundary) == (kind, boundary)
    assert error in failure.error
    assert "\n" not in failure.error
    before.nothing_left()


@pytest.mark.thorough
def test_a_bug_amid_others(renderer, before):
    """They are cancelled wherever they are, and closed."""
    names = ["score: KeyError", *NOT_SAMPLED]
    with pytest.raises(BugError, match="KeyError: 'k'"):
        asyncio.run(play(Speaker(renderer), renderer, names, count=len(names)))
    before.nothing_left()


@pytest.mark.parametrize("error", [InfraError("no room"), KeyError("k")])
def test_an_env_that_cannot_be_made(renderer, before, error):
    class Unmade(Hostile):
        def __init__(self, config=None, *, shared=None):
            super().__init__(config, shared=shared)
            raise error

    playing = play(Speaker(renderer), renderer, ["nothing"], count=1, env=Unmade)
    if isinstance(error, KeyError):
        with pytest.raises(BugError, match=r"KeyError: 'k' \(in reset"):
            asyncio.run(playing)
    else:
        (played,) = asyncio.run(playing)
        assert (played.failure.kind, played.failure.error) == ("environment", "InfraError: no room")
    before.nothing_left()


def test_prompts_name_their_fault():
    assert script(prompt("tool: KeyError") + "<|im_start|>assistant")["tool_calls"]
