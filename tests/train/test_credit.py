import pytest

from agentrl import Trajectory
from agentrl.train.credit import assign_advantages, uncredited_groups
from agentrl.trajectory.trajectory import Turn
from agentrl.types import StopReason


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
