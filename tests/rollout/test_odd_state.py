"""Envs that keep their state in odd places: each episode begins with the task as the data has it.

The Envs are in `odd_envs`. A perfect player must hear and earn the same in each way to play: alone, in a group, beside
others in lockstep, in the second try after an InfraError, and in the second epoch.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path

import pytest

from agentrl import Env, EnvFactory, InfraError, Limits, StepResult, StopReason
from agentrl.check import CheckInputs, check
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.parking import Parking
from agentrl.episode.resume import resume_episode
from agentrl.episode.run import run_episode
from agentrl.errors import ConfigError
from agentrl.rollout import Rollout, TaskStream, evaluate, run_groups
from tests.rollout import odd_own_state as own
from tests.rollout.odd_envs import Case, row
from tests.rollout.odd_values import CASES

ROOT = Path(__file__).parents[2]


class LockstepScript(ScriptedEngine):
    """A script of which all living episodes take their turns at the same time."""

    @contextmanager
    def lockstep(self, episodes):
        self._alive, self._waiting = episodes, []
        yield self

    @contextmanager
    def episode(self):
        try:
            yield
        finally:
            self._alive -= 1
            self._go()

    def begin_again(self):
        pass

    def _go(self):
        if len(self._waiting) >= self._alive:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.set()

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        turn = asyncio.Event()
        self._waiting.append(turn)
        self._go()
        await turn.wait()
        return await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)


def failing_first(cls):
    """The same Env, whose world breaks at the very end of each first try, after all of its hooks have run."""

    async def score(self, trajectory):
        value = cls.score(self, trajectory)
        value = await value if isawaitable(value) else value
        if not trajectory.session_id.endswith("-again"):
            raise InfraError("the world is gone")
        return value

    return type(cls.__name__, (cls,), {"score": score, "__module__": cls.__module__})


async def play(case: Case, renderer, tasks, size, *, engine=ScriptedEngine, concurrency=128, step=0, env=None):
    async with EnvFactory(env or case.env) as envs:
        rollout = Rollout(
            envs=envs,
            engine=engine(case.turns, renderer),
            renderer=renderer,
            options=EpisodeOptions(limits=Limits(turns=4)),
            reward=case.reward,
            concurrency=concurrency,
        )
        return await run_groups(rollout, tasks, size, step=step)


def heard(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] != "assistant"]


def is_perfect(case: Case, groups, episodes):
    played = [trajectory for group in groups for trajectory in group]
    assert len(played) == episodes
    assert [heard(one) for one in played] == [list(case.heard)] * episodes
    assert [one.reward for one in played] == [1.0] * episodes
    assert len({tuple(one.tokens) for one in played}) == 1, "episodes of one task and script have the same tokens"


@contextmanager
def unless_refused(case: Case):
    """What JSON cannot hold may be refused instead: in one line that names the place."""
    try:
        yield
    except ConfigError as exc:
        if case.plain or "metadata" not in str(exc) or "\n" in str(exc):
            raise


ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@ALL
@pytest.mark.parametrize("way", ["one", "together", "in turn", "lockstep"])
async def test_group_members_meet_the_same_task(renderer, case, way):
    size = 1 if way == "one" else 4
    engine = LockstepScript if way == "lockstep" else ScriptedEngine
    with unless_refused(case):
        groups = await play(
            case, renderer, [case.task()], size, engine=engine, concurrency=1 if way == "in turn" else 128
        )
        is_perfect(case, groups, size)


@ALL
async def test_the_second_try_meets_the_task_as_it_was(renderer, case):
    if case.reward is not None:  # a reward function scores instead of the Env: it fails by itself
        inner = case.reward

        def reward(trajectory):
            value = inner(trajectory)
            if not trajectory.session_id.endswith("-again"):
                raise InfraError("the world is gone")
            return value

        case, env = replace(case, reward=reward), case.env
    else:
        env = failing_first(case.env)
    with unless_refused(case):
        groups = await play(case, renderer, [case.task()], 2, env=env)
        is_perfect(case, groups, 2)
        assert all(one.session_id.endswith("-again") for group in groups for one in group)


@ALL
async def test_the_second_epoch_meets_the_task_as_it_was_and_the_data_is_unchanged(renderer, case):
    with unless_refused(case):
        stream = TaskStream([case.task()], seed=0)
        for epoch in range(2):
            is_perfect(case, await play(case, renderer, stream.take(1), 2, step=epoch), 2)
        state = json.loads(json.dumps(stream.state_dict()))
        again = TaskStream([case.task()], seed=0)
        again.load_state_dict(state)  # raises ConfigError for data that changed
        assert again.state_dict() == state


PLAIN = {name: case for name, case in CASES.items() if case.plain}
"""The other tasks have no equality to compare by."""


@pytest.mark.parametrize("case", PLAIN.values(), ids=PLAIN)
async def test_the_tasks_of_the_caller_are_left_as_they_were(renderer, case):
    tasks = [case.task()]
    await play(case, renderer, tasks, 2)
    assert tasks == [case.task()]


@pytest.mark.parametrize("name", ["Appends", "FindsTheLabel", "EditsThePrompt", "ChangesItsTools"])
async def test_a_task_that_is_in_the_data_twice_is_played_twice(renderer, name):
    case, task = CASES[name], CASES[name].task()
    is_perfect(case, await play(case, renderer, [task, task, replace(task, id="shallow")], 2), 6)


async def test_an_evaluation_leaves_the_data_as_it_was(renderer):
    case = CASES["Appends"]
    tasks = [case.task()]
    for _ in range(2):
        async with EnvFactory(case.env) as envs:
            found = await evaluate(
                Rollout(envs=envs, engine=ScriptedEngine(case.turns, renderer), renderer=renderer), tasks
            )
        is_perfect(case, [found.trajectories], 1)


HASHED = """
from agentrl.rollout import TaskStream
from tests.rollout import odd_values
print(TaskStream([odd_values.CASES["HoldsASet"].task()], seed=0).state_dict()["rows"])
"""


@pytest.mark.thorough
def test_the_digest_of_a_set_is_the_same_in_every_process():
    """Sets have another order in each process; a run is resumed in another one."""

    def digest(seed):
        python = [sys.executable, "-c", HASHED]
        return subprocess.run(
            python, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, cwd=ROOT
        )

    one, *others = (digest(seed) for seed in "123")
    if one.returncode:  # refused, in one line that names the place
        assert "ConfigError" in one.stderr.splitlines()[-1]
        assert "metadata" in one.stderr.splitlines()[-1]
        return
    assert {other.stdout for other in others} == {one.stdout}


# Aborted episodes


class Replayed(CASES["Appends"].env):
    """Deterministic, if its task is: a replay begins with the task as the data has it."""

    deterministic = True


class Snapshots(Env):
    """`snapshot` gives away the live state, which `close` then clears."""

    async def reset(self, task):
        self.state = {"seen": []}
        return task.prompt

    async def step(self, action):
        self.state["seen"].append(action.content)
        return StepResult(f"{len(self.state['seen'])} seen", done=action.content == "right")

    async def score(self, trajectory):
        return float(self.state["seen"] == ["left", "right"])

    async def close(self):
        getattr(self, "state", {}).clear()

    async def snapshot(self):
        return self.state

    async def restore(self, state):
        self.state = state


class SnapshotsMetadata(CASES["Appends"].env):
    """What it wrote into its task is part of its state, and comes back with it."""

    async def snapshot(self):
        return None

    async def restore(self, state):
        pass


@pytest.mark.parametrize("env", [Replayed, Snapshots, SnapshotsMetadata], ids=lambda env: env.__name__)
@pytest.mark.parametrize("stops", [1, 2])
async def test_an_aborted_episode_goes_on_with_its_state(renderer, tmp_path, env, stops):
    parking, tickets, flag = Parking(str(tmp_path)), [], [False]

    async def park(parked):
        tickets.append(await parking.park(parked, 60))

    def after(trajectory):
        flag[0] = len(trajectory.turns) == stops

    engine = ScriptedEngine(["left", "right"], renderer)
    hooks = EpisodeHooks(aborted=lambda: flag[0], on_turn=after, park=park)
    task = row(metadata={"seen": []})
    first = await run_episode(env(), task, engine=engine, renderer=renderer, hooks=hooks, session_id="s")
    assert (first.stop, len(tickets)) == (StopReason.ABORTED, 1), first.info
    back = await parking.take(tickets[0])
    ended = await resume_episode(back, env(), engine=engine, renderer=renderer)

    assert (ended.reward, heard(ended)) == (1.0, ["Go.", "1 seen", "2 seen"])
    assert task == row(metadata={"seen": []})


# State that is the author's own: agentrl isolates it, or `agentrl check` reports it (docs/checking.md: `state` for
# class, module, shared and configuration; "two plays that score differently" for all else that outlives an episode).
# Left out: state in other processes, files and environment variables, which docs/checking.md does not promise to find.

OWN = [
    (own.OnClass, None),
    (own.OnModule, None),
    (own.OnDefault, None),
    (own.OnCache, None),
    (own.OnClosure, None),
    (own.OnShared, None),
    (own.OnDictConfig, {"game": {"log": []}}),
    (own.OnModelConfig, {}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("env", "config"), OWN, ids=[env.__name__ for env, _ in OWN])
async def test_state_of_the_authors_own_is_isolated_or_reported(renderer, env, config):
    async with EnvFactory(env, config) as envs:
        rollout = Rollout(envs=envs, engine=ScriptedEngine(["go"], renderer), renderer=renderer)
        [group] = await run_groups(rollout, [row()], 4)
    if [one.reward for one in group] == [1.0] * 4:
        return
    given = CheckInputs(
        env=env,
        tasks=[row()],
        renderer=renderer,
        config=config or {},
        gold=own.says_go,
        only=("players", "state", "determinism", "reward"),
        process=False,
        seconds=2.0,
    )
    report = await check(given)
    assert report.has("state", "players", "determinism", "reward"), [str(one) for one in report.findings]
    assert report.errors
