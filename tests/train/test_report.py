"""The reward curve: what it shows must be there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from agentrl.monitor import RolloutMetrics
from agentrl.train.report import after_warm_start, draw_curve, nothing_learned, told_reward

figures = pytest.importorskip("matplotlib.figure")


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """The vertical axis of the curve of these rewards."""
    found = []
    save = figures.Figure.savefig
    monkeypatch.setattr(
        figures.Figure, "savefig", lambda self, *a, **k: (found.append(self.axes[0].get_ylim()), save(self, *a, **k))
    )

    def draw(*rewards, evals=None):
        metrics = [{"step": step, "reward_mean": reward} for step, reward in enumerate(rewards, 1)]
        assert draw_curve(metrics, evals or {}, tmp_path / "reward.png")
        assert (tmp_path / "reward.png").stat().st_size > 1000
        return found[-1]

    return draw


@pytest.mark.parametrize("rewards", [(0.25,) * 3, (0.25, 0.25 + 1e-9, 0.25), (0.0,), (-7.5, -7.5)])
def test_a_flat_run_looks_flat(drawn, rewards):
    low, high = drawn(*rewards)
    assert high - low > 0.09
    assert low < min(rewards) <= max(rewards) < high


def test_a_run_that_learns_fills_the_axis(drawn):
    assert drawn(0.0, 0.5, 1.0) == pytest.approx((-0.05, 1.05))
    assert drawn(0.0, 100.0) == pytest.approx((-5.0, 105.0))
    low, high = drawn(0.5, 0.6, evals={"start": 0.0, "final": 0.9})
    assert (low < 0.0, high > 0.9) == (True, True)


@pytest.mark.parametrize(("equal", "says"), [(1, "3 of 4 groups"), (4, "0 of 4 groups .*; if that stays so")])
def test_whether_the_warm_start_was_enough(equal, says):
    metrics = replace(RolloutMetrics.of_groups([]), groups=4, zero_advantage_groups=equal, reward_mean=0.25)
    assert re.match(f"after the warm start: mean reward 0.250, and {says}", after_warm_start(metrics))


@pytest.mark.parametrize(
    ("failed", "unscored", "said"),
    [
        (0, 0, "mean reward 1.000"),
        (18, 0, "mean reward 1.000 of 2, 18 failed"),
        (20, 0, "no mean reward, 20 failed"),
        (5, 15, "no mean reward, 5 failed, 15 unscored"),
    ],
)
def test_failed_episodes_stand_beside_the_mean(failed, unscored, said):
    metrics = RolloutMetrics(episodes=20, failed_episodes=failed, unscored_episodes=unscored, reward_mean=1.0)
    assert told_reward(metrics) == said
    assert f"20 episodes ({said}): " in nothing_learned(metrics)


def test_an_evaluation_without_a_mean_is_not_drawn(drawn):
    low, _ = drawn(0.5, 0.6, evals={"start": None, "final": 0.9})
    assert low > 0.0
