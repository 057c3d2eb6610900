"""The reward hook, and rewards against the right baseline."""

from __future__ import annotations

import itertools
import logging
import math
import random
import statistics
import subprocess
import sys

import pytest

from agentrl.errors import ConfigError
from agentrl.slime import post_process_rewards, reward
from agentrl.slime.host import ESTIMATORS
from agentrl.slime.rewards import _warn_unscored
from agentrl.slime.rollouts import is_valid
from tests.slime.hook_samples import Segment, args, failed, fan_out, played


@pytest.fixture(autouse=True)
def _warn_anew():
    _warn_unscored.cache_clear()


@pytest.mark.thorough
def test_the_hooks_are_light_and_found_by_name():
    """slime loads a hook by importlib and getattr, in every process that names one."""
    code = (
        "import importlib, sys; found = importlib.import_module('agentrl.slime');"
        "print(*sorted({'torch', 'ray', 'transformers', 'aiohttp', 'numpy', 'sglang'} & set(sys.modules)));"
        "print(*(callable(getattr(found, name)) for name in sys.argv[1:]))"
    )
    names = ["reward", "post_process_rewards", "has_spread", "prefer_spread", "oldest_first", "log_rollout", "log_eval"]
    out = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["", "True True True True True True True"]


async def test_every_sample_keeps_its_own_reward():
    samples = [played(0, 1.0), played(0, -0.5), failed(0)]
    assert await reward(args(), samples[1]) == -0.5
    assert await reward(args(), samples) == [1.0, -0.5, 0.0]
    assert await reward(args(), [[samples[0]], samples[1:]]) == [[1.0], [-0.5, 0.0]], "a group of fan-outs"
    assert await reward(args(), []) == []


async def test_a_mapping_stays_a_mapping():
    parts = {"score": 0.5, "right": 1.0}
    assert await reward(args(reward_key="score"), played(0, parts)) == parts


async def test_an_unscored_episode_earns_nothing_and_says_so_once(caplog):
    caplog.set_level(logging.WARNING)
    assert await reward(args(), [played(0, None), played(0, 2.0), played(1, None)]) == [0.0, 2.0, 0.0]
    assert await reward(args(reward_key="score"), played(0, None)) == {"score": 0.0}
    both = args(reward_key="score", eval_reward_key="right")
    assert await reward(both, played(None, None)) == {"right": 0.0}, "evaluation has no groups"
    assert await reward(args(eval_reward_key="right"), played(0, None)) == 0.0
    assert [record.message for record in caplog.records] == [
        "an episode has no reward from Env.score, a step or `reward`, and agentrl.slime.reward makes it 0"
    ]


async def test_a_sample_that_no_env_played_has_no_reward_to_hand_over():
    stranger = Segment(index=7)
    with pytest.raises(ConfigError, match=r"sample 7 has no reward .* no Env played it; use --custom-generate"):
        await reward(args(), stranger)
    stranger.reward = 3.0
    assert await reward(args(), stranger) == 3.0


def test_each_prompt_has_its_own_baseline():
    samples = [played(g, r) for g, r in [(0, 1.0), (1, 10.0), (0, 0.0), (1, 30.0)]]
    raw, rewards = post_process_rewards(args(), samples)
    assert raw == [1.0, 10.0, 0.0, 30.0], "in the order of the samples"
    assert rewards == pytest.approx([0.5 / (0.5**0.5 + 1e-6), -(0.5**0.5), -(0.5**0.5), 0.5**0.5], rel=1e-5)
    assert rewards[0] == 0.5 / (statistics.stdev([1, 0]) + 1e-6)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"grpo_std_normalization": False}, [0.5, -0.5]),
        ({"advantage_estimator": "reinforce_plus_plus_baseline"}, [0.5, -0.5]),
        ({"rewards_normalization": False}, [1.0, 0.0]),
        ({"advantage_estimator": "ppo"}, [1.0, 0.0]),
        ({"advantage_estimator": "reinforce_plus_plus"}, [1.0, 0.0]),
        ({"advantage_estimator": "gspo"}, [0.5 / (0.5**0.5 + 1e-6), -0.5 / (0.5**0.5 + 1e-6)]),
        ({"advantage_estimator": "cispo"}, [0.5 / (0.5**0.5 + 1e-6), -0.5 / (0.5**0.5 + 1e-6)]),
        ({"advantage_estimator": "flash_reinforce"}, [0.5, -0.5]),
        ({"advantage_estimator": "flash_reinforce", "rewards_normalization": False}, [1.0, 0.0]),
    ],
)
def test_slimes_flags_are_honoured(flags, expected):
    raw, rewards = post_process_rewards(args(**flags), [played(0, 1.0), played(0, 0.0)])
    assert raw == [1.0, 0.0]
    assert rewards == pytest.approx(expected, abs=1e-12)
    assert raw is not rewards, "whoever edits one must not edit the other"


def test_flash_reinforce_subtracts_the_mean_of_the_batch():
    """Each rollout counts once, a failure not at all: the mean is that of 1, 0, 0 and 1."""
    split = fan_out(2, 1.0, 3)
    samples = [played(0, 1.0), played(0, 0.0), played(1, 0.0), failed(1), *split]
    raw, rewards = post_process_rewards(args(advantage_estimator="flash_reinforce"), samples)
    assert raw == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert rewards == [0.5, -0.5, -0.5, 0.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("estimator", ["rloo", ""])
def test_an_unknown_estimator_is_refused(estimator):
    with pytest.raises(
        ConfigError, match=rf"--advantage-estimator '{estimator}' is unknown .* remove --custom-reward-post"
    ):
        post_process_rewards(args(advantage_estimator=estimator), [played(0, 1.0)])


def _slime_baseline(estimator, values, size):
    """slime's own rule, for samples without fan-outs and failures, written apart from the hook."""
    if estimator in ("ppo", "reinforce_plus_plus"):
        return values
    if estimator == "flash_reinforce":
        mean = math.fsum(values) / len(values)
        return [value - mean for value in values]
    advantages = []
    for start in range(0, len(values), size):
        group = values[start : start + size]
        mean = math.fsum(group) / size
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in group) / (size - 1)) + 1e-6
        scale = deviation if estimator in ("grpo", "gspo", "cispo") else 1.0
        advantages += [(value - mean) / scale for value in group]
    return advantages


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_thousand_groups_have_slimes_own_advantages(estimator):
    rng = random.Random(15)
    for _ in range(100):
        size = rng.randint(2, 8)
        values = [rng.choice([0.0, 1.0, rng.random()]) for _ in range(10 * size)]
        samples = [played(place // size, value) for place, value in enumerate(values)]
        rewards = post_process_rewards(args(advantage_estimator=estimator), samples)[1]
        assert rewards == pytest.approx(_slime_baseline(estimator, values, size), abs=1e-12, rel=1e-9)


@pytest.mark.parametrize("estimator", ["flash_reinforce", "grpo", "reinforce_plus_plus_baseline"])
def test_the_mean_advantage_of_the_policys_rollouts_is_zero(estimator):
    rng = random.Random(16)
    for _ in range(100):
        rollouts = []
        for group, _member in itertools.product(range(10), range(rng.randint(1, 6))):
            kind = rng.randrange(4)
            rollouts.append([failed(group)] if kind == 0 else fan_out(group, rng.random(), kind))
        samples = [sample for siblings in rollouts for sample in siblings]
        rewards = dict(
            zip(map(id, samples), post_process_rewards(args(advantage_estimator=estimator), samples)[1], strict=True)
        )
        assert abs(math.fsum(rewards[id(siblings[0])] for siblings in rollouts)) < 1e-9
        assert all(rewards[id(one)] == 0.0 for siblings in rollouts for one in siblings if not is_valid(one))


def test_what_the_policy_did_not_cause_is_no_baseline():
    """1 and 0 of four episodes; of the others the world broke, a bug struck, and slime aborted one."""
    bug = failed(0, kind="bug", boundary="score")
    samples = [played(0, 1.0), failed(0), played(0, 0.0), bug, played(0, 0.0, stop="aborted")]
    raw, rewards = post_process_rewards(args(grpo_std_normalization=False), samples)
    assert raw == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert rewards == [0.5, 0.0, -0.5, 0.0, 0.0]
    scaled = post_process_rewards(args(), samples)[1]
    assert scaled == pytest.approx([0.5**0.5, 0.0, -(0.5**0.5), 0.0, 0.0], rel=1e-5)


@pytest.mark.parametrize("group", [[played(0, 5.0)], [played(0, 5.0), failed(0)], [failed(0), failed(0)]])
def test_nobody_to_compare_with(group):
    assert post_process_rewards(args(), group)[1] == [0.0] * len(group)


def test_a_sample_taken_out_of_the_loss_alone_still_counts():
    """slime's --rollout-sample-filter-path sets remove_sample and says that the sample stays in the normalisation."""
    samples = [played(0, 1.0), played(0, 0.0)]
    samples[1].remove_sample = True
    assert post_process_rewards(args(grpo_std_normalization=False), samples)[1] == [0.5, -0.5]


def test_equal_rewards_leave_no_dust():
    samples = [played(0, 0.1) for _ in range(3)] + [played(1, 1e9 / 3) for _ in range(7)]
    assert post_process_rewards(args(), samples)[1] == [0.0] * 10


def test_uneven_fan_out_counts_each_rollout_once():
    rng = random.Random(0)
    prompts = [[fan_out(g, rng.random(), rng.randint(1, 4)) for _ in range(4)] for g in range(4)]
    samples = [sample for rollouts in prompts for siblings in rollouts for sample in siblings]
    rng.shuffle(samples)
    raw, rewards = post_process_rewards(args(), samples)
    of = dict(zip(map(id, samples), rewards, strict=True))
    for rollouts in prompts:
        advantages = [{of[id(sample)] for sample in siblings} for siblings in rollouts]
        assert all(len(shared) == 1 for shared in advantages), "siblings are one rollout, with one advantage"
        assert abs(statistics.fmean(shared.pop() for shared in advantages)) < 1e-12
    assert raw == [sample.reward for sample in samples]


def test_siblings_with_rewards_of_their_own():
    """Another strategy than agentrl's may score each sample: the rollout then counts with their mean."""
    first, second = fan_out(0, 1.0, 2)
    second.reward = 0.0
    rewards = post_process_rewards(args(grpo_std_normalization=False), [first, second, played(0, 1.0)])[1]
    assert rewards == [0.25, -0.75, 0.25]


def test_rollouts_by_index_where_the_host_has_no_rollout_id(Sample):
    one, other = played(0, 1.0, Sample), played(0, 0.0, Sample)
    twin = played(0, 1.0, Sample)
    twin.index = one.index
    rewards = post_process_rewards(args(grpo_std_normalization=False), [one, twin, other])[1]
    assert rewards == [0.5, 0.5, -0.5]
    for sample in (one, twin, other):
        sample.index = None
    rewards = post_process_rewards(args(grpo_std_normalization=False), [one, twin, other])[1]
    assert rewards == pytest.approx([1 / 3, 1 / 3, -2 / 3]), "unnamed, each is its own"


def test_the_reward_key():
    samples = [played(0, {"score": 2.0, "right": 9.0}), played(0, {"score": 0.0})]
    assert post_process_rewards(args(reward_key="score"), samples)[0] == [2.0, 0.0]


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        (None, None, "the reward of sample 3 is None, which holds no finite number; a mapping needs --reward-key"),
        ({"score": 1.0}, None, r"is {'score': 1.0}, .*; a mapping needs --reward-key"),
        ({"score": 1.0}, "right", r"is {'score': 1.0}, which holds no finite number under --reward-key right$"),
        (1.0, "right", "under --reward-key right"),
        (math.nan, None, "is nan, which holds no finite number"),
        (math.inf, None, "is inf"),
    ],
)
def test_a_reward_that_is_no_number(value, key, message):
    sample = played(0, value)
    sample.index = 3
    with pytest.raises(ConfigError, match=message):
        post_process_rewards(args(reward_key=key), [sample])


def test_a_sample_without_a_prompt():
    sample = played(None)
    sample.index = 3
    with pytest.raises(ConfigError, match=r"sample 3 has no group_index, .*--data-source-path"):
        post_process_rewards(args(), [sample])
    assert post_process_rewards(args(advantage_estimator="ppo"), [sample])[1] == [1.0]


def test_samples_of_another_generate_function_count(Sample):
    strangers = [Sample(group_index=0, index=i, reward=float(i), metadata=None) for i in range(2)]
    assert post_process_rewards(args(grpo_std_normalization=False), strangers)[1] == [-0.5, 0.5]
