# ruff: noqa: ASYNC110 - files and polls are how processes tell a test what they do
"""Rollouts in workers: the same episodes as without, and what goes wrong."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl import EnvFactory, EpisodeOptions, Limits, Task
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineLostError
from agentrl.rollout import BugError, Rollout, run_groups
from agentrl.rollout.play.in_flight import in_flight
from agentrl.rollout.play.remote import EpisodeOrder, with_workers
from tests.rollout import remote_env

pytestmark = pytest.mark.slow
ENVS = Path(remote_env.__file__)
TIMES = ("generate_s", "env_s")


def untimed(trajectory):
    data = trajectory.to_json()
    data["turns"] = [{name: turn[name] for name in turn if name not in TIMES} for turn in data["turns"]]
    written = json.dumps(data).replace('["default"]', "[]").replace('"default"', "null")
    return json.loads(written)  # "default" is what a server calls weights without a version


class Setting:
    def __init__(self, tokenizer, renderer, env, turns, *, served=False, **config):
        path, options = f"{ENVS}:{env}", EpisodeOptions(limits=Limits(turns=4))
        self.engine = ScriptedEngine(turns, renderer)
        self.rollout = Rollout(
            envs=EnvFactory(path, config), engine=self.engine, renderer=renderer, options=options, concurrency=64
        )
        self.order = EpisodeOrder(env=path, env_config=config, options=options, tokenizer=tokenizer)
        if not served:
            script = f"{ENVS}:{turns.__name__}" if callable(turns) else turns
            self.order = replace(self.order, engine="scripted", engine_config={"turns": script})

    def workers(self, count):
        return with_workers(count, self.rollout, self.order)


@pytest.fixture
def setting(tokenizer, renderer):
    return lambda *given, **config: Setting(tokenizer, renderer, *given, **config)


def adding(n):
    return [Task(prompt=f"What is 2 + {i}?", label=5, id=str(i)) for i in range(n)]


@pytest.mark.thorough
@pytest.mark.parametrize("served", [False, True])
async def test_workers_play_what_this_process_plays(setting, tmp_path, served):
    here = setting("Adder", remote_env.script, served=served, folder=str(tmp_path))
    async with here.workers(0) as rollout:
        alone = await run_groups(rollout, adding(6), 3, seed=1)
    async with here.workers(2) as rollout:
        groups = await run_groups(rollout, adding(6), 3, seed=1)
    assert [list(map(untimed, group)) for group in groups] == [list(map(untimed, group)) for group in alone]
    assert {trajectory.reward for group in groups for trajectory in group} == {1.0}
    shared = (tmp_path / "shared").read_text().split()
    assert len(shared) == len(set(shared)) == 3, "share runs once in this process, and once a worker"
    assert str(os.getpid()) == shared[0] not in shared[1:]


@pytest.mark.thorough
async def test_a_bug_in_a_worker_is_a_bug_of_the_run(setting):
    async with setting("Unruly", ["hello"] * 3).workers(2) as rollout:
        with pytest.raises(BugError, match=r"KeyError: 'zebra' \(in step, episode train-000000-0000-000\)"):
            await run_groups(rollout, [Task(metadata={"does": "bug"}, prompt="go")], 1)


@pytest.mark.thorough
async def test_an_episode_whose_worker_ends_is_played_once_more(setting, tmp_path):
    tasks = [Task(metadata={"does": "die once", "mark": str(tmp_path / "mark")}, prompt="go")]
    async with setting("Unruly", ["hello"] * 3).workers(2) as rollout:
        [[trajectory]] = await run_groups(rollout, tasks, 1)
    assert trajectory.reward == 1.0
    [lost] = trajectory.info["workers_lost"]
    assert "ended by signal SIGKILL" in lost


@pytest.mark.thorough
async def test_agents_are_spread_over_the_gateways_of_the_workers(setting, tmp_path):
    tasks = [Task(prompt=f"go {i // 4}", id=str(i)) for i in range(16)]
    ends = Task(metadata={"mark": str(tmp_path / "mark")}, prompt="go", id="ends its worker")
    async with setting("Asks", ["hello"] * 3).workers(2) as rollout:
        played = [group[0] for group in await run_groups(rollout, tasks, 1)]
        [[again]] = await run_groups(rollout, [ends], 1)
    assert {trajectory.reward for trajectory in (*played, again)} == {1.0}
    assert all(trajectory.ledger.trained == trajectory.ledger.sampled > 0 for trajectory in (*played, again))
    places = {(trajectory.info["result"]["process"], trajectory.info["result"]["url"]) for trajectory in played}
    assert len(places) == len({process for process, _ in places}) == len({url for _, url in places}) == 2
    assert os.getpid() not in {process for process, _ in places}
    assert "ended by signal SIGKILL" in again.info["workers_lost"][0]


@pytest.mark.thorough
async def test_an_episode_that_ends_two_workers_has_failed(setting):
    tasks = [Task(metadata={"does": does}, prompt="go") for does in ("die", "nothing")]
    async with setting("Unruly", ["hello"] * 3).workers(2) as rollout:
        [[failed], [other]] = await run_groups(rollout, tasks, 1)
    assert failed.failure.kind == "environment"
    assert "two workers ended while they played it" in failed.failure.error
    assert failed.ledger.trained == 0
    assert other.reward == 1.0


@pytest.mark.thorough
async def test_the_loss_of_a_served_engine_ends_the_run(setting, monkeypatch):
    here = setting("Adder", remote_env.script, served=True)

    async def generate(*given, **named):
        raise EngineLostError("the engine's process ended")

    monkeypatch.setattr(here.engine, "generate", generate)
    async with here.workers(1) as rollout:
        with pytest.raises(EngineLostError, match="the engine's process ended"):
            await run_groups(rollout, adding(4), 2)


@pytest.mark.thorough
async def test_an_env_that_a_worker_cannot_import_is_named(setting, tmp_path):
    here = setting("Adder", remote_env.script)
    here.order = replace(here.order, env=f"{tmp_path}/gone.py:Gone")
    with pytest.raises(ConfigError, match=r"gone\.py"):
        async with here.workers(1):
            pass


@pytest.mark.thorough
async def test_metadata_that_cannot_be_sent_is_named(setting):
    async with setting("Adder", remote_env.script).workers(1) as rollout:
        with pytest.raises(ConfigError, match=r"task 3 cannot be sent to a worker: .*lambda"):
            await run_groups(rollout, [Task(prompt="x", id="3", metadata={"f": lambda: 0})], 1)


@pytest.mark.thorough
async def test_what_workers_play_is_in_flight_here(setting, tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.rollout.play.remote._STATUS_S", 0.05)
    task = Task(metadata={"does": "wait", "mark": str(tmp_path / "go")}, prompt="go", id="slow")
    async with setting("Unruly", ["hello"] * 3).workers(1) as rollout:
        playing = asyncio.create_task(run_groups(rollout, [task], 1))
        while not any(flight.reported for flight in in_flight().values()):
            await asyncio.sleep(0.01)
        [shown] = [flight.to_json() for flight in in_flight().values()]
        assert (shown["name"], shown["task"], shown["turn"]) == ("train-000000-0000-000", "slow", 0)
        (tmp_path / "go").touch()
        await playing
    assert not in_flight()


@pytest.mark.thorough
async def test_a_worker_killed_with_200_in_flight_loses_none(setting, tmp_path):
    tasks = [Task(metadata={"does": "wait", "mark": str(tmp_path / "go")}, prompt="go", id=str(i)) for i in range(200)]
    here = setting("Unruly", ["hello"] * 3)
    here.rollout = replace(here.rollout, concurrency=400)
    async with here.workers(2) as rollout:
        pool = rollout.workers.pool
        playing = asyncio.create_task(run_groups(rollout, tasks, 1))
        while [seat.pending for seat in pool.seats] != [100, 100]:
            await asyncio.sleep(0.01)
        os.kill(pool.seats[0].pid, signal.SIGKILL)
        while sum(seat.pending for seat in pool.seats) != 200 or pool.seats[1].pending != 200:
            await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        groups = await playing
    assert [group[0].task.id for group in groups] == [str(i) for i in range(200)]
    assert all(group[0].reward == 1.0 for group in groups)
    assert sum("workers_lost" in group[0].info for group in groups) == 100
