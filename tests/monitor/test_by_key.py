"""Rewards by a key of the metadata, against bootstraps and intervals computed apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ConfigError
from agentrl.monitor.by_key import scores_by
from agentrl.types import Task


def groups(source: str, *rewards: Any) -> list[list[Any]]:
    """One task for each argument: its episodes' rewards, None for one that failed."""
    made = []
    for number, given in enumerate(rewards):
        task = Task(prompt="?", id=f"{source}-{number}", metadata={"source": source})
        given = given if isinstance(given, list) else [given]
        made.append([SimpleNamespace(task=task, reward=r, is_valid=r is not None) for r in given])
    return made


def of_bernoulli(share: float, count: int, seed: int) -> list[float]:
    return [float(draw) for draw in np.random.default_rng(seed).random(count) < share]


@pytest.mark.parametrize("rewards", [of_bernoulli(0.3, 400, 1), list(np.random.default_rng(2).exponential(size=300))])
def test_the_interval_is_the_percentile_bootstraps(rewards):
    """An oracle that draws indices, as the textbook has it."""
    random = np.random.default_rng(9)
    drawn = [np.mean(random.choice(rewards, len(rewards))) for _ in range(10_000)]
    scores, _ = scores_by("source", groups("nq", *rewards))
    assert scores["nq"].mean == pytest.approx(np.mean(rewards))
    assert (scores["nq"].low, scores["nq"].high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.01)


def test_of_zeros_and_ones_it_is_the_binomials():
    """A bootstrap sample of 40 ones among 100 has Binomial(100, 0.4) of them: percentiles 30 or 31, and 49 or 50."""
    scores, _ = scores_by("source", groups("nq", *[1.0] * 40, *[0.0] * 60))
    assert (scores["nq"].low, scores["nq"].high) == pytest.approx((0.305, 0.495), abs=0.006)


def test_the_interval_of_the_average_is_narrower_by_the_square_root_of_the_number():
    """Four data sets of one size and variance: half as wide as each of them, however the tasks stand in the file."""
    rows = [group for i in range(4) for group in groups(f"{i}", *of_bernoulli(0.5, 400, i))]
    scores, average = scores_by("source", rows)
    widths = [score.high - score.low for score in scores.values()]
    assert average.high - average.low == pytest.approx(np.mean(widths) / 2, rel=0.05)
    mixed, same = scores_by("source", rows[::-1])
    assert (dict(mixed), same) == (dict(scores), average), "drawn apart, so their order does not matter"


def test_it_covers_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(300):
        _, average = scores_by("source", groups("a", *of_bernoulli(0.4, 80, seed)) + groups("b", *[0.0, 1.0] * 20))
        hits += average.low <= (0.4 + 0.5) / 2 <= average.high
    assert 0.93 <= hits / 300 <= 1.0


def test_the_average_counts_each_data_set_once():
    scores, average = scores_by("source", groups("large", *[1.0] * 90) + groups("small", *[0.0] * 10))
    assert [(s.mean, s.low, s.high, s.tasks) for s in scores.values()] == [(1, 1, 1, 90), (0, 0, 0, 10)]
    assert (average.mean, average.tasks) == (0.5, 100)


def test_a_tasks_samples_are_no_independent_evidence():
    alone, _ = scores_by("source", groups("nq", *[1.0] * 20, *[0.0] * 30))
    often, _ = scores_by("source", groups("nq", *[[1.0] * 8] * 20, *[[0.0] * 8] * 30))
    assert (often["nq"].low, often["nq"].high) == (alone["nq"].low, alone["nq"].high)


def test_failed_episodes_stand_apart():
    scores, average = scores_by("source", groups("nq", 1.0, [None, 1.0], [None, None]) + groups("musique", 0.0))
    assert (scores["nq"].mean, scores["nq"].tasks, scores["nq"].failed) == (1.0, 2, 3)
    assert (average.mean, average.tasks, average.failed) == (0.5, 3, 3)


def test_without_a_valid_episode_there_is_no_score_and_no_average():
    scores, average = scores_by("source", groups("nq", 1.0) + groups("musique", None))
    assert scores["musique"].to_json() == {"mean": None, "interval": [None, None], "tasks": 0, "failed": 1}
    assert (average.mean, average.low, average.high, average.tasks) == (None, None, None, 1)


def test_it_is_the_same_every_time_and_for_ten_thousands():
    rows = groups("nq", *of_bernoulli(0.4, 20_000, 1), *np.linspace(0, 1, 1_000))
    assert scores_by("source", rows) == scores_by("source", rows)


@pytest.mark.parametrize(
    ("key", "value", "said"), [("level", None, "no such key"), ("tags", ["a"], "neither text nor a number")]
)
def test_a_key_that_is_not_there(key, value, said):
    rows = groups("nq", 1.0)
    rows[0][0].task.metadata[key] = value
    with pytest.raises(ConfigError, match=f"--by {key}: the metadata of task 'nq-0' has {said}.* keys are: source"):
        scores_by(key, rows)
