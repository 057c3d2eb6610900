"""The rollout loop over workers: the episodes that it plays here, failures and bounds."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl import EnvFactory, InfraError, Task
from agentrl.rollout import Rollout, TaskStream
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.rollout.loop.loop_drawer import LoopDrawer, LoopSettings
from agentrl.rollout.play.failures import RETRY, FailurePolicy
from agentrl.rollout.play.remote import EpisodeOrder, with_workers
from tests.rollout import remote_env
from tests.rollout.players import Sampled, steps

pytestmark = pytest.mark.slow


@pytest.fixture
def looping(tokenizer, renderer, tmp_path):
    """`async with looping(env=, workers=, ...) as drawer`: a loop whose episodes workers play, 0 for this process."""

    @asynccontextmanager
    async def make(
        *, env="Walk", workers=2, concurrency=8, n=40, seconds=0.0, labels=None, failures=RETRY, at_once=None, **values
    ):
        config = {"folder": str(tmp_path), "step_s": values.pop("step_s", 0.0)}
        for file in tmp_path.glob("*"):
            file.unlink()
        path = f"{Path(remote_env.__file__)}:{env}"
        tasks = [Task(prompt=f"task {i}", id=str(i), label=(labels or {}).get(i)) for i in range(n)]
        rollout = Rollout(
            envs=EnvFactory(path, config),
            engine=Sampled(renderer, seconds),
            renderer=renderer,
            concurrency=concurrency,
            failures=failures,
        )
        order = EpisodeOrder(
            env=path, env_config=config, options=rollout.options, tokenizer=tokenizer, failures=failures
        )
        async with with_workers(workers, rollout, replace(order, at_once=at_once or {})) as playing:
            drawer = LoopDrawer(playing, GroupBuffer(TaskStream(tasks, 0), 4), LoopSettings(groups=3, **values))
            try:
                yield drawer
            finally:
                await drawer.stop()

    return make


def noted(folder, name):
    """How often each process noted it. Envs that an abort kept from their reset are closed and were not opened."""
    file = folder / name
    return Counter(file.read_text().split()) if file.exists() else Counter()


@pytest.mark.thorough
async def test_a_loop_plays_in_workers_what_it_plays_here(looping, tmp_path):
    async with looping(workers=0, staleness=1) as drawer:
        alone = await steps(drawer, 4)
    async with looping(staleness=1) as drawer:
        found = await steps(drawer, 4)
    assert len(noted(tmp_path, "opened")) == 2, "both workers played"
    assert noted(tmp_path, "opened") <= noted(tmp_path, "closed")
    shared = alone.keys() & found.keys()
    assert len(shared) >= 3 * 3 * 4
    assert all(alone[place] == found[place] for place in shared)


@pytest.mark.thorough
async def test_what_is_played_at_the_end_is_closed(looping, tmp_path):
    async with looping(staleness=3, step_s=0.2) as drawer:
        drawer.begin(0, 0)
        await drawer.draw(1)
        assert drawer.loop.playing
    assert noted(tmp_path, "opened") <= noted(tmp_path, "closed")


@pytest.mark.thorough
async def test_groups_that_lost_too_many_episodes_are_dropped(looping):
    async with looping(labels={1: "broken"}, failures=FailurePolicy(again=0, least=2), staleness=1) as drawer:
        found = await steps(drawer, 8)
        assert len(found) == 8 * 3 * 4
        assert drawer.buffer.dropped["env_failure"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("broken", r"train-\d+-\d+ failed in score: .*the grader is gone"),
        ("die", "two workers ended while they played it"),
    ],
)
async def test_fail_fast_ends_the_rollout(looping, label, message):
    async with looping(
        labels=dict.fromkeys(range(40), label), failures=FailurePolicy(again=0, ends_run=True), staleness=1
    ) as drawer:
        drawer.begin(0, 0)
        with pytest.raises(InfraError, match=message):
            await drawer.draw(1)


@pytest.mark.thorough
async def test_bounds_are_divided_among_the_workers(looping, tmp_path):
    async with looping(at_once={"step": 4}, concurrency=24, staleness=1, step_s=0.01) as drawer:
        await steps(drawer, 2)
    assert set(noted(tmp_path, "stepping")) == {"1", "2"}
