import asyncio
from dataclasses import replace

import pytest

from agentrl import BadCallPolicy, Env, EnvFactory, Generation, InfraError, Limits, StepResult, StopReason, Task, tool
from agentrl._util.seeds import sampling_seed
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError
from agentrl.rollout import BugError, Evaluation, Rollout, evaluate, run_groups
from tests.rollout.fakes import Fake


class Echo(Env):
    """Done after one turn; rewarded by the label."""

    made = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        type(self).made += 1

    async def step(self, action):
        return StepResult(done=True)

    async def score(self, trajectory):
        return self.task.label


def tasks(n):
    return [Task(prompt="say yes", label=float(i), id=str(i)) for i in range(n)]


async def play(engine, renderer, env=Echo, n=3, group_size=4, reward=None, **kwargs):
    concurrency = kwargs.pop("concurrency", 128)
    async with EnvFactory(env) as envs:
        rollout = Rollout(
            envs=envs,
            engine=engine,
            renderer=renderer,
            options=EpisodeOptions(limits=Limits(turns=2)),
            reward=reward,
            concurrency=concurrency,
        )
        return await run_groups(rollout, tasks(n), group_size, **kwargs)


async def test_groups_come_in_the_order_of_their_tasks(renderer):
    seen = []

    groups = await play(Fake(renderer), renderer, on_episode=seen.append)

    assert [[t.reward for t in group] for group in groups] == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert len({t.session_id for group in groups for t in group}) == 12
    assert len(seen) == 12


async def test_sampling_seeds_follow_from_step_group_and_member_alone(renderer):
    one, two, other_step, other_name = (Fake(renderer) for _ in range(4))

    await play(one, renderer, seed=7, step=2, sampling_params={"temperature": 0.5})
    await play(two, renderer, seed=7, step=2, concurrency=1)
    await play(other_step, renderer, seed=7, step=3)
    await play(other_name, renderer, seed=7, step=2, name="eval")

    def seeds(engine):
        return [params["sampling_seed"] for _, params in sorted(engine.asked.items())]

    assert sorted(one.asked) == sorted(two.asked)
    assert seeds(one) == seeds(two)
    assert not set(seeds(one)) & (set(seeds(other_step)) | set(seeds(other_name)))
    assert len(set(seeds(one))) == 12
    assert all(0 <= seed < 2**31 for seed in seeds(one))
    assert all(params["temperature"] == 0.5 for params in one.asked.values())


def test_a_sampling_seed_is_the_same_on_every_machine():
    assert sampling_seed("train", 0, 1, 2, 3) == 1185002229


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_no_more_episodes_at_once_than_allowed(renderer, concurrency):
    engine = Fake(renderer, pause=0.03)

    await play(engine, renderer, concurrency=concurrency)

    assert engine.most == concurrency


class LockstepFake(Fake):
    """Answers a wave only when all who are alive have asked."""

    def __init__(self, renderer):
        super().__init__(renderer)
        self.waves = []

    def lockstep(self, episodes):
        from contextlib import contextmanager, nullcontext

        @contextmanager
        def entered():
            self.waves.append(episodes)
            yield type("Wave", (), {"episode": lambda _: nullcontext(), "begin_again": lambda _: None})()

        return entered()


async def test_an_engine_with_lockstep_gets_waves_that_fit(renderer):
    engine = LockstepFake(renderer)

    groups = await play(engine, renderer, concurrency=5)

    assert engine.waves == [5, 5, 2]
    assert [[t.reward for t in group] for group in groups] == [[0.0] * 4, [1.0] * 4, [2.0] * 4]


async def test_an_environment_that_fails_once_is_played_again_afresh(renderer):
    Echo.made = 0
    engine = Fake(renderer, fails={"train-000000-0001-002"})

    groups = await play(engine, renderer)

    again = groups[1][2]
    assert (again.reward, again.stop, again.session_id) == (1.0, StopReason.DONE, "train-000000-0001-002-again")
    assert Echo.made == 13
    assert engine.asked["train-000000-0001-002-again"] == engine.asked["train-000000-0001-002"]


class Breaks(Echo):
    async def step(self, action):
        if self.task.id == "1":
            raise InfraError("the world is gone")
        return StepResult(done=True)


async def test_an_environment_that_fails_twice_is_kept_masked_and_without_reward(renderer):
    groups = await play(Fake(renderer), renderer, Breaks)

    for trajectory in groups[1]:
        assert (trajectory.stop, trajectory.reward) == (StopReason.FAILED, None)
        assert trajectory.failure.kind == "environment"
        assert trajectory.ledger.trained == 0
        assert trajectory.ledger.masked == {"env_failure": trajectory.ledger.sampled}
    assert all(t.ledger.trained == t.ledger.sampled > 0 for t in groups[0] + groups[2])


class Buggy(Echo):
    closed = 0

    async def step(self, action):
        if self.task.id == "0":
            raise KeyError("oops")
        await asyncio.sleep(60)

    async def close(self):
        type(self).closed += 1


async def test_a_bug_stops_everything_and_shows_its_traceback(renderer):
    Buggy.made = Buggy.closed = 0

    with pytest.raises(BugError, match=r"KeyError: 'oops' \(in step, episode train-000000-0000-00\d\)") as error:
        await play(Fake(renderer), renderer, Buggy)

    assert 'raise KeyError("oops")' in str(error.value)
    assert Buggy.closed == Buggy.made == 12


async def test_cancellation_closes_every_env(renderer):
    class Slow(Buggy):
        made = closed = 0

        async def step(self, action):
            await asyncio.sleep(60)

    running = asyncio.create_task(play(Fake(renderer), renderer, Slow))
    await asyncio.sleep(0.1)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert Slow.closed == Slow.made == 12


class Unscored(Echo):
    async def score(self, trajectory):
        return None


async def test_an_episode_that_nothing_scores_is_a_configuration_error(renderer):
    with pytest.raises(ConfigError, match="Unscored gave no episode a reward, for example that of '0'; write score"):
        await play(Fake(renderer), renderer, Unscored, n=1)


class RewardsInStep(Echo):
    """Knows no score; rewards what it answers."""

    score = Env.score

    async def step(self, action):
        return StepResult(done=True, reward=None if self.task.id == "2" else 1.0)


class Cuts(Fake):
    """Never ends a turn of the first task."""

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        return replace(said, finish_reason="length") if "-0000-" in session_id else said


async def test_an_episode_that_ends_before_its_first_step_is_worth_nothing(renderer):
    groups = await play(Cuts(renderer), renderer, RewardsInStep)
    assert {t.stop for t in groups[0]} == {StopReason.CONTEXT_FULL}
    assert [[t.reward for t in group] for group in groups] == [[0.0] * 4, [1.0] * 4, [0.0] * 4]
    everywhere = Cuts(renderer)
    assert {t.reward for group in await play(everywhere, renderer, RewardsInStep, n=1) for t in group} == {0.0}


async def test_a_run_that_has_got_rewards_may_get_none_in_a_step(renderer):
    async with EnvFactory(RewardsInStep) as envs:
        rollout = Rollout(envs=envs, engine=Fake(renderer), renderer=renderer)
        with pytest.raises(ConfigError, match="gave no episode a reward"):
            await run_groups(rollout, tasks(3)[2:], 2)
        await run_groups(rollout, tasks(3), 2)
        assert [[t.reward for t in g] for g in await run_groups(rollout, tasks(3)[2:], 2)] == [[0.0, 0.0]]


async def test_an_evaluation_without_any_reward_says_so_and_keeps_its_episodes(renderer):
    async with EnvFactory(RewardsInStep) as envs:
        rollout = Rollout(envs=envs, engine=Fake(renderer), renderer=renderer)
        found = await evaluate(rollout, tasks(3)[2:])
        assert (found.metrics.unscored_episodes, found.trajectories[0].reward) == (1, None)
        assert (await evaluate(rollout, tasks(3))).metrics.reward_mean == pytest.approx(2 / 3)


class Punishes(RewardsInStep):
    bad_calls = BadCallPolicy(penalty=0.25)

    @tool
    async def look(self) -> str:
        """Look."""
        return ""


async def test_an_episode_that_nobody_rewarded_pays_for_its_bad_calls_too(renderer):
    class Bad(Fake):
        async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
            said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
            broken = replace(said, tokens=self.broken, log_probs=[-0.5] * len(self.broken))
            return broken if "-0002-" in session_id else said

    engine = Bad(renderer)
    engine.broken = renderer.encode({"role": "assistant", "content": "<tool_call>\n{"})
    groups = await play(engine, renderer, Punishes, group_size=1)
    assert [t.reward for group in groups for t in group] == [1.0, 1.0, -0.5]
    assert groups[2][0].reward_parts == {"bad_call_penalty": -0.5}


class AbortsOnce(Fake):
    """Aborts the first request of each episode after one token, as for new weights."""

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        if session_id not in self.asked:
            self.asked[session_id] = sampling_params
            return Generation(self.tokens[:1], [-0.5], "abort")
        return await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)


async def test_a_turn_that_the_engine_aborts_goes_on_also_in_an_evaluation(renderer):
    engine = AbortsOnce(renderer)
    groups = await play(engine, renderer, group_size=1)
    async with EnvFactory(Echo) as envs:
        evaluation = await evaluate(Rollout(envs=envs, engine=engine, renderer=renderer), tasks(3))
    episodes = [*(episode for group in groups for episode in group), *evaluation.trajectories]
    assert [episode.reward for episode in episodes] == [0.0, 1.0, 2.0] * 2
    for episode in episodes:
        assert (episode.stop, episode.ledger.masked) == (StopReason.DONE, {})
        assert [token for action in episode.actions for token in action.tokens] == [engine.tokens[0], *engine.tokens]


async def test_evaluation_is_greedy_and_leaves_failures_out_of_its_mean(renderer):
    engine = Fake(renderer)
    async with EnvFactory(Breaks) as envs:
        found = await evaluate(Rollout(envs=envs, engine=engine, renderer=renderer), tasks(3))

    assert isinstance(found, Evaluation)
    metrics = found.metrics
    assert all(params["temperature"] == 0.0 for params in engine.asked.values())
    assert (metrics.episodes, metrics.failed_episodes, metrics.reward_mean, metrics.reward_std) == (3, 1, 1.0, 1.0)
    assert (metrics.turns_mean, metrics.tool_call_rate) == (1.0, 0.0)
    assert metrics.stops == {"done": 2, "failed": 1}
    assert [t.task.id for t in found.trajectories] == ["0", "1", "2"]
    assert metrics.sampled_tokens == 3 * len(engine.tokens)


class Alone:
    """A group reward written by hand, which asks no model."""

    def __call__(self, trajectory):
        return None

    async def of_group(self, trajectories):
        return [float(place) for place, _ in enumerate(trajectories)]


class WithPolicy(Alone):
    async def of_group(self, trajectories, *, policy):
        return [float(policy is not None) + 1 for _ in trajectories]


class WithKeywords(Alone):
    async def of_group(self, trajectories, **more):
        return [float(len(more)) for _ in trajectories]


@pytest.mark.parametrize(
    ("reward", "given"), [(Alone(), [0.0, 1.0]), (WithPolicy(), [2.0, 2.0]), (WithKeywords(), [1.0, 1.0])]
)
async def test_a_group_reward_gets_the_policy_if_it_has_a_parameter_for_it(renderer, reward, given):
    groups = await play(Fake(renderer), renderer, n=2, group_size=2, reward=reward)
    assert [[t.reward for t in group] for group in groups] == [given, given]
