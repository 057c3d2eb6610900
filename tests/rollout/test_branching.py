"""Branches of an episode: the same tokens before the turn, a reward for each leaf, a budget, one ledger."""

from __future__ import annotations

from random import Random

import pytest

from agentrl import (
    ConfigError,
    Env,
    EnvFactory,
    EpisodeOptions,
    InfraError,
    Limits,
    ResumeError,
    StepResult,
    StopReason,
    Task,
    tool,
)
from agentrl.engine import ScriptedEngine
from agentrl.rollout import Rollout
from agentrl.rollout.play.branching import Budget, EpisodeTree
from agentrl.testing import call
from agentrl.train.credit import assign_advantages


class Dice(Env):
    """Each answer holds a random number of the Env and everything that was said before."""

    deterministic = True
    turns_made = 6

    def reset(self, task):
        self.said = []
        return f"Begin with {self.rng.random():.3f}."

    @tool
    def roll(self, sides: int) -> str:
        """Roll a die."""
        self.said.append(f"d{sides}={self.rng.randint(1, sides)}")
        return self.said[-1]

    async def step(self, action):
        if action.calls:
            return await self.run_tools(action)
        self.said.append(action.content)
        done = len(self.said) >= self.turns_made
        return StepResult(f"{' '.join(self.said)} {self.rng.random():.3f}", done=done, reward=float(len(self.said)))


class Saved(Dice):
    """As Dice, with a snapshot, which is a list that the Env goes on changing."""

    deterministic = False

    def snapshot(self):
        return self.said

    def restore(self, state):
        self.said = state


class Memory(ScriptedEngine):
    """Samples turns at random for a root, and the same turns again for a beginning that it knows."""

    def __init__(self, renderer, seed):
        super().__init__([], renderer)
        self.rng, self.known = Random(seed), {}

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        asked = tuple(input_ids)
        if asked not in self.known:
            assert "-b" not in session_id, "a branch begins with other tokens"
            number = self.rng.randint(2, 20)
            said = call("roll", sides=number) if self.rng.random() < 0.4 else f"say {number}"
            self.known[asked] = self._generation(said)
        return self.known[asked]


async def tree(renderer, cls=Dice, *, seed=0, engine=None, budget=None, **limits):
    engine = engine or Memory(renderer, seed)
    options = EpisodeOptions(limits=Limits(**limits))
    rollout = Rollout(envs=EnvFactory(cls), engine=engine, renderer=renderer, options=options)
    task = Task(id=f"t{seed}", seed=seed + 1)
    return await EpisodeTree.play(rollout, task, budget or Budget(episodes=1000), session_id=f"root{seed}")


@pytest.mark.thorough
@pytest.mark.parametrize("cls", [Dice, Saved])
async def test_branches_at_a_random_turn_replay_to_the_token(renderer, cls):
    """500 branches of each kind: the engine knows only beginnings that are the root's, token for token."""
    rng, same = Random(7), 0
    for seed in range(50):
        grown = await tree(renderer, cls, seed=seed)
        for _ in range(5):
            turn = rng.randrange(len(grown.root.turns))
            for leaf in await grown.branch(turn, 2):
                same += leaf.tokens == grown.root.tokens and leaf.messages == grown.root.messages
                assert leaf.stop is StopReason.DONE
                assert leaf.reward == sum(t.reward or 0 for t in grown.root.turns[turn:])
                leaf.verify()
    assert same == 500


async def test_shared_tokens_are_counted_once(renderer):
    grown = await tree(renderer, engine=Wild(renderer))
    for turn in range(3):
        await grown.branch(turn, 4)
    ledger = grown.ledger
    sampled = sum(engine_tokens for engine_tokens in grown.rollout.engine.sampled)
    assert ledger.sampled == ledger.trained + sum(ledger.masked.values()) == sampled
    for leaf in grown.groups[2]:
        assert leaf.tokens[: leaf.prompt_length] == grown.root.tokens[: leaf.prompt_length]


class Wild(Memory):
    """Says something else each time."""

    sampled: list[int]

    def __init__(self, renderer):
        super().__init__(renderer, 3)
        self.sampled = []

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        said = self._generation(f"say {self.rng.randint(2, 20)}")
        self.sampled.append(len(said.tokens))
        return said


async def test_the_leaves_are_each_others_baseline(renderer):
    class Sum(Dice):
        def score(self, trajectory):
            return float(self.said[-1].split()[-1])

    grown = await tree(renderer, Sum, engine=Wild(renderer))
    leaves = await grown.branch(3, 4)
    rewards = [leaf.reward for leaf in leaves]
    assert len(set(rewards)) > 1
    advantages, informative = assign_advantages(grown.groups, "dr_grpo", "episode")
    assert informative == [True]
    mean = sum(rewards) / 4
    assert [turns[0] for turns in advantages[0]] == pytest.approx([reward - mean for reward in rewards])


async def test_the_budget_counts_episodes_and_tokens(renderer):
    grown = await tree(renderer, budget=Budget(episodes=5))
    assert [len(await grown.branch(1, 3)) for _ in range(3)] == [3, 2, 0]
    assert [len(group) for group in grown.groups] == [3, 2]
    grown = await tree(renderer, budget=Budget(episodes=100, tokens=1))
    assert [len(await grown.branch(1, 3)) for _ in range(2)] == [3, 0]
    assert grown.budget.tokens < 0


async def test_limits_count_what_came_before(renderer):
    grown = await tree(renderer, engine=Wild(renderer), turns=4)
    (leaf, _) = await grown.branch(3, 2)
    assert (len(leaf.turns), leaf.stop) == (1, StopReason.MAX_TURNS)
    grown = await tree(renderer, engine=Wild(renderer), tokens=100)
    (leaf, _) = await grown.branch(1, 2)
    assert leaf.segment.length - grown.root.prompt_length <= 100


async def test_another_world_is_not_continued(renderer):
    class Other(Dice):
        worlds = iter(range(100))

        def reset(self, task):
            super().reset(task)
            return f"World {next(self.worlds)}."

    grown = await tree(renderer, Other)
    with pytest.raises(ResumeError, match="diverged before turn 2"):
        await grown.branch(2, 2)


async def test_what_cannot_branch_is_refused(renderer):
    class Alive(Dice):
        deterministic = False

    with pytest.raises(ConfigError, match="write snapshot and restore"):
        await tree(renderer, Alive)
    with pytest.raises(ConfigError, match=r"limits\.compact_at cannot branch"):
        await tree(renderer, compact_at=500)
    grown = await tree(renderer)
    with pytest.raises(ConfigError, match="has turns 0 to 5"):
        await grown.branch(6, 2)


async def test_a_leaf_whose_environment_fails_is_masked(renderer):
    class Fails(Dice):
        made = 0

        def reset(self, task):
            type(self).made += 1
            self.number = self.made
            return super().reset(task)

        async def step(self, action):
            if self.number == 3 and len(self.said) == 3:
                raise InfraError("gone")
            return await super().step(action)

    grown = await tree(renderer, Fails)
    leaves = await grown.branch(2, 3)
    failed = [leaf for leaf in leaves if leaf.failure]
    assert failed
    assert all(leaf.ledger.trained == 0 < leaf.ledger.sampled for leaf in failed)
    assert grown.ledger.sampled == grown.ledger.trained + sum(grown.ledger.masked.values())
