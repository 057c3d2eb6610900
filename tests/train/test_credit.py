import random

import pytest

from agentrl import Trajectory
from agentrl.slime import post_process_rewards
from agentrl.train.credit import assign_advantages, uncredited_groups
from agentrl.trajectory.trajectory import Turn
from agentrl.types import StopReason
from tests.slime.hook_samples import args, failed, played


def episode(reward, *steps, stop=StopReason.DONE):
    trajectory = Trajectory()
    trajectory.segment.turns = [Turn(reward=step) for step in steps]
    trajectory.reward, trajectory.stop = reward, stop
    return trajectory


def test_an_episodes_turns_share_its_advantage():
    values, informative = assign_advantages([[episode(1.5, 0.5, None, 1.0), episode(0.5, 0.5)]], "dr_grpo", "episode")

    assert values == [[[0.5] * 3, [-0.5] * 3]]
    assert informative == [True]


def test_turns_are_credited_with_the_rewards_from_there_on():
    values, _ = assign_advantages([[episode(1.5, 0.5, None, 1.0), episode(0.0, None, None, None)]], "dr_grpo", "turn")

    # left before each turn: 1.5, 1.0, 1.0 and 0, 0, 0
    assert values == [[[0.75, 0.5, 0.5], [-0.75, -0.5, -0.5]]]


def test_what_the_score_adds_counts_as_given_at_the_end():
    """Whether the last step gives a reward or `score` adds it makes no difference."""
    given = [[episode(2.0, 0.5, 1.5), episode(0.5, 0.5), episode(0.5, 0.5, None)]]
    added = [[episode(2.0, 0.5, None), episode(0.5, None), episode(0.5, 0.5, None)]]

    assert assign_advantages(given, "grpo", "turn") == assign_advantages(added, "grpo", "turn")


def test_an_episode_that_ended_earlier_earns_nothing_more():
    values, _ = assign_advantages([[episode(0.5, 0.5), episode(1.0, 0.0, 0.5, 0.5)]], "dr_grpo", "turn")

    # before its turns the second had 0, 0, 0.5; the first, of one turn, had nothing before its outcome
    assert values[0][1] == pytest.approx([0.25, 0.25, 0.0])


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo"])
def test_without_step_rewards_both_are_the_same(algorithm):
    groups = [[episode(1.0, None, None), episode(0.0, None), episode(0.3, None, None, None)]]

    assert assign_advantages(groups, algorithm, "turn") == assign_advantages(groups, algorithm, "episode")


def test_failed_episodes_are_in_no_baseline_and_may_lack_turns():
    failed = episode(None, stop=StopReason.FAILED)
    groups = [[episode(1.0, 0.25, None), episode(0.0, None), failed], [episode(1.0, None), failed, failed]]

    values, informative = assign_advantages(groups, "dr_grpo", "turn")

    assert values[0] == [[0.5, 0.375], [-0.5, -0.375], [0.0, 0.0]]
    assert informative == [True, False]
    assert assign_advantages([[failed, failed]], "grpo", "turn") == ([[[], []]], [False])


def test_large_rewards_are_counted_as_exactly_as_small_ones():
    """In float32 these two are equal, and a turn's share of them is lost."""
    groups = [[episode(2.0**24 + 1, 2.0**24, 1.0), episode(2.0**24, 2.0**24, 0.0)]]
    values, informative = assign_advantages(groups, "dr_grpo", "turn")
    assert (values, informative) == ([[[0.5, 0.5], [-0.5, -0.5]]], [True])


def test_sums_in_another_order_are_equal_rewards():
    assert assign_advantages([[episode(0.1 + 0.2), episode(0.3)]], "grpo", "episode")[1] == [False]


def test_groups_of_equal_totals_that_get_no_credit_are_counted():
    early, late = episode(1.0, 1.0, 0.0), episode(1.0, 0.0, 1.0)
    failed = episode(None, 0.5, stop=StopReason.FAILED)
    assert assign_advantages([[early, late]], "grpo", "turn") == ([[[0.0, 0.0]] * 2], [False])
    assert uncredited_groups([[early, late], [early, early], [early, failed], [early, episode(0.0, 0.0)]]) == 1


def test_flash_reinforce_judges_an_episode_against_the_batch():
    groups = [[episode(1.0, None, None)], [episode(0.0, None)], [episode(None, stop=StopReason.FAILED)]]

    values, informative = assign_advantages([*groups, [episode(0.0)], [episode(1.0)]], "flash_reinforce", "episode")

    assert values == [[[0.5, 0.5]], [[-0.5, -0.5]], [[0.0, 0.0]], [[-0.5, -0.5]], [[0.5, 0.5]]]
    assert informative == [True] * 5
    assert assign_advantages([groups[0]] * 3, "flash_reinforce", "episode")[1] == [False] * 3, "equal in the batch"


def test_flash_reinforce_credits_turns_too():
    groups = [[episode(1.5, 0.5, None, 1.0)], [episode(0.0, None, None, None)]]

    values, _ = assign_advantages(groups, "flash_reinforce", "turn")

    assert values == [[[0.75, 0.5, 0.5]], [[-0.75, -0.5, -0.5]]]


@pytest.mark.parametrize("algorithm", ["flash_reinforce", "grpo", "gspo"])
@pytest.mark.parametrize("size", [1, 5])
def test_both_hosts_judge_alike(algorithm, size):
    """The trainer's advantages of random batches, with failures, beside those of the hook under slime."""
    rng = random.Random(25)
    for _ in range(50):
        rewards = [[rng.choice([0.0, 1.0, rng.random(), None]) for _ in range(size)] for _ in range(8)]
        groups = [
            [episode(r, None, stop=StopReason.FAILED if r is None else StopReason.DONE) for r in group]
            for group in rewards
        ]
        samples = [failed(i) if r is None else played(i, r) for i, group in enumerate(rewards) for r in group]
        values, _ = assign_advantages(groups, algorithm, "episode")
        flat = [turns[0] for group in values for turns in group]
        assert flat == pytest.approx(post_process_rewards(args(advantage_estimator=algorithm), samples)[1], abs=1e-9)


def test_a_return_is_judged_against_the_members_that_took_the_turn():
    groups = [[episode(1.5, 0.5, None, 1.0), episode(0.5, None, 0.5), episode(0.0, None)]]
    values, informative = assign_advantages(groups, "dr_grpo", "return")
    # returns from each turn on: 1.5, 1, 1 | 0.5, 0.5 | 0; the third turn is one member's alone: 1 of three
    assert values[0][0] == pytest.approx([1.5 - 2 / 3, 1 - 0.75, 1 - 1 / 3])
    assert values[0][1] == pytest.approx([0.5 - 2 / 3, 0.5 - 0.75, 0.0])
    assert values[0][2] == pytest.approx([-2 / 3, 0.0, 0.0])
    assert informative == [True]


def test_a_discount_halves_what_comes_a_turn_later():
    groups = [[episode(1.0, 0.0, 0.0, 1.0), episode(0.0, 0.0, 0.0, 0.0)]]
    values, _ = assign_advantages(groups, "dr_grpo", "return", 0.5)
    assert values == [[[0.125, 0.25, 0.5], [-0.125, -0.25, -0.5]]]


def test_equal_totals_teach_by_return():
    early, late = episode(1.0, 1.0, 0.0), episode(1.0, 0.0, 1.0)
    values, informative = assign_advantages([[early, late]], "dr_grpo", "return")
    assert (values, informative) == ([[[0.0, -0.5], [0.0, 0.5]]], [True])
    assert assign_advantages([[early, early]], "grpo", "return")[1] == [False]


def test_failed_members_have_no_return():
    failed = episode(None, 9.0, stop=StopReason.FAILED)
    values, _ = assign_advantages([[episode(1.0, 1.0), episode(0.0, 0.0), failed]], "dr_grpo", "return")
    assert values == [[[0.5], [-0.5], [0.0]]]
    assert assign_advantages([[failed, failed]], "grpo", "return")[1] == [False]


def test_the_deviation_is_that_of_all_turns_of_the_group():
    values, _ = assign_advantages([[episode(1.0, 0.0, 1.0), episode(0.0, 0.0, 0.0)]], "grpo", "return")
    deviation = (4 * 0.25 / 3) ** 0.5
    assert values[0][0] == pytest.approx([0.5 / deviation] * 2, rel=1e-5)


def test_groups_of_unequal_size_are_judged_each_by_itself():
    groups = [[episode(1.0, None), episode(0.0, None)], [episode(1.0, None), episode(0.0, None), episode(0.5, None)]]
    values, _ = assign_advantages(groups, "dr_grpo", "episode")
    assert [[turns[0] for turns in group] for group in values] == [[0.5, -0.5], [0.5, -0.5, 0.0]]
