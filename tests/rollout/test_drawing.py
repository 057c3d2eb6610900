"""Groups that teach nothing are replaced by groups of fresh tasks."""

from __future__ import annotations

import pytest

from agentrl import Env, EnvFactory, InfraError, StepResult, Task
from agentrl.errors import ConfigError
from agentrl.rollout import Rollout, TaskStream
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.rollout.loop.drawing import GroupDrawer
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from tests.rollout.fakes import Fake


class Marked(Env):
    """Gives the members of a group the rewards of the label: "01" differs, "11" does not, x fails."""

    async def step(self, action):
        return StepResult(done=True)

    async def score(self, trajectory):
        member = int(trajectory.session_id.split("-")[3])  # not the order of scoring: two groups may share a task
        if (reward := self.task.label[member % len(self.task.label)]) == "x":
            raise InfraError("the grader is gone")
        return float(reward)


def differ(groups):
    return [len({t.reward for t in group if t.is_valid}) > 1 for group in groups]


@pytest.fixture
def drawer(renderer):
    def make(labels, *, refill, groups=3, warnings=None, **values):
        rollout = Rollout(envs=EnvFactory(Marked), engine=Fake(renderer), renderer=renderer)
        tasks = [Task(prompt="x", id=str(i), label=label) for i, label in enumerate(labels)]
        return GroupDrawer(
            rollout=rollout,
            buffer=GroupBuffer(TaskStream(tasks, 0), 2),
            groups=groups,
            group_size=2,
            seed=0,
            sampling_params={},
            teach=differ,
            warn=(warnings if warnings is not None else []).append,
            refill=refill,
            **values,
        )

    return make


async def test_groups_without_a_difference_give_their_place_to_fresh_tasks(drawer):
    drawn = await drawer(["11"] * 4 + ["01"] * 4, refill=10).draw(1)

    assert differ(drawn.groups) == [True] * 3
    assert len({group[0].task.id for group in drawn.groups + drawn.replaced}) == 3 + len(drawn.replaced)
    assert drawn.replaced, "the seed draws some of the equal ones"
    assert drawn.metrics == {
        "teaching_share_drawn": 0.0,
        "teaching_share": 1.0,
        "replaced_groups": len(drawn.replaced),
        "dropped_replaced": len(drawn.replaced),
    }
    for group in drawn.replaced:
        for trajectory in group:
            ledger = total_ledger(trajectory.segments)
            assert ledger.masked == {"replaced": ledger.sampled}
    assert all(not total_ledger(t.segments).masked for group in drawn.groups for t in group)


async def test_every_group_of_a_step_has_its_own_sampling_seeds(drawer):
    own = drawer(["11"], refill=3)
    drawn = await own.draw(7)

    sessions = [t.session_id for group in drawn.replaced + drawn.groups for t in group]
    assert sorted(sessions) == [f"train-000007-{group:04d}-{member:03d}" for group in range(12) for member in range(2)]
    asked = own.rollout.engine.asked
    assert len({params["sampling_seed"] for params in asked.values()}) == 24


async def test_without_refill_a_step_is_as_it_was(drawer):
    drawn = await drawer(["11"] * 4, refill=0).draw(1)

    assert (len(drawn.groups), drawn.replaced) == (3, [])
    assert drawn.metrics == {"teaching_share_drawn": 0.0, "teaching_share": 0.0, "replaced_groups": 0}


async def test_the_bound_is_a_bound_and_warns_once(drawer):
    warnings = []
    own = drawer(["11", "00"], refill=2, warnings=warnings)
    drawn = await own.draw(1)
    await own.draw(2)

    assert (len(drawn.groups), len(drawn.replaced)) == (3, 6)
    assert [t for group in drawn.groups for t in group if total_ledger(t.segments).masked] == [], "the last ones stay"
    assert warnings == [
        "step 1: in each of 9 groups all episodes got the same reward, refill (2) included; the tasks are too hard or "
        "too easy: give others, a warm start, or a larger group_size"
    ]


async def test_groups_that_failed_are_replaced_too(drawer):
    drawn = await drawer(["xxxx", "xxxx", "01"], refill=8).draw(1)

    assert differ(drawn.groups) == [True] * 3
    for group in drawn.replaced:
        for trajectory in group:
            ledger = total_ledger(trajectory.segments)
            assert ledger.masked == {"env_failure": ledger.sampled}, "the first reason stays"


async def test_a_step_without_any_reward_is_refused_unless_none_is_needed(drawer):
    class Unscored(Marked):
        async def score(self, trajectory):
            return None

    for keep in (False, True):
        own = drawer(["0"], refill=1, keep_unscored=keep)
        object.__setattr__(own.rollout, "envs", EnvFactory(Unscored))
        if keep:
            assert len((await own.draw(1)).groups) == 3
        else:
            with pytest.raises(ConfigError, match="Unscored gave no episode a reward"):
                await own.draw(1)


async def test_the_buffer_knows_what_is_to_be_trained_and_what_was_replaced(drawer):
    own = drawer(["11"] * 4 + ["01"] * 4, refill=10)
    drawn = await own.draw(1)

    assert own.buffer.dropped == {"replaced": len(drawn.replaced)}
    assert [group.members for group in drawn.pending] == drawn.groups
    assert own.buffer.depths() == {"playing": 0, "waiting": 0, "finished": 3}
    own.buffer.trained(1, drawn.pending)
    assert own.buffer.state()["groups"] == []


async def test_episodes_of_an_earlier_try_are_not_played_again(drawer):
    own = drawer(["01"] * 4, refill=0)
    first = own.buffer.take()
    kept = Trajectory(first.task, session_id="earlier")
    kept.reward = 1.0
    own.buffer.put_back(first, [kept])
    drawn = await own.draw(1)

    assert drawn.groups[0][0] is kept
    assert len(own.rollout.engine.asked) == 5


async def test_data_that_ends_too_early_is_one_line(drawer):
    own = drawer(["01"] * 2, refill=0)
    own.buffer.source = TaskStream(own.buffer.source._tasks, 0, epochs=1)
    with pytest.raises(ConfigError, match="step 1: the data has ended"):
        await own.draw(1)
