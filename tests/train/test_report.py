"""The reward curve: what it shows must be there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from agentrl import Task, Trajectory
from agentrl.monitor import RolloutMetrics
from agentrl.rollout.play.evaluate import Evaluation
from agentrl.train.bill import Bill
from agentrl.train.held_out import HeldOut, ranked
from agentrl.train.report import StepReport, Summary, after_warm_start, draw_curve, told_reward

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
        results = [result(name, len(rewards), [mean]) for name, mean in (evals or {}).items()]
        assert draw_curve(metrics, results, tmp_path / "reward.png")
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
    assert re.match(f"after the warm start: mean reward 0.250, and {says}", after_warm_start(metrics, None))


@pytest.mark.parametrize(("sampled", "unsure"), [(0.25, True), (0.7, False)])
def test_a_warm_start_that_leaves_the_policy_unsure_is_told(sampled, unsure):
    metrics = replace(RolloutMetrics.of_groups([]), groups=4, reward_mean=sampled)
    line = after_warm_start(metrics, result("warm", 0, [1, 1, 1, 0]))
    assert ("greedy episodes earn 0.750, so the policy is unsure" in line) == unsure


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


def test_an_evaluation_without_a_mean_is_not_drawn(drawn):
    low, _ = drawn(0.5, 0.6, evals={"start": None, "final": 0.9})
    assert low > 0.0


def result(name, steps, earned):
    """An evaluation of a run of some steps, whose tasks earned these rewards."""
    played = [Trajectory(Task(id=str(number))) for number in range(len(earned))]
    for trajectory, reward in zip(played, earned, strict=True):
        trajectory.reward = reward
    return HeldOut.of(name, steps if name == "final" else 0, Evaluation.of(played))


def ended(*rewards, bill=None, **evals):
    """The summary of a run with these sampled rewards, and held-out rewards of four tasks by evaluation."""
    results = [result(name, len(rewards), earned) for name, earned in evals.items()]
    best = next(iter(ranked(results)), None)
    step = {"sampled_tokens": 10, "trained_tokens": 10, "masked_tokens": {}, "failed_episodes": 0}
    metrics = [{**step, "reward_mean": reward} for reward in rewards]
    return Summary.of(results, best, metrics, bill or Bill())


def test_a_run_ends_with_what_one_wants_to_know(tmp_path):
    run = tmp_path / "run"
    (run / "tensorboard").mkdir(parents=True)
    (run / "reward.png").touch()
    summary = ended(0.25, 0.5, 0.875, start=[0, 0, 0, 0], warm=[1, 0, 0, 0], final=[1, 1, 1, 0])

    said = list(summary.report(run))

    assert said[:6] == [
        "held out, greedy     mean reward of 4 tasks (95 % interval)",
        "  before               0.000 (0.000 to 0.000)",
        "  after the warm start 0.250 (0.000 to 0.750)",
        "  after RL             0.750 (0.250 to 1.000), +0.500 by reinforcement",
        f"  best, step 3         0.750 (0.250 to 1.000): {run}/best",
        "reward, sampled      0.250 in step 1, 0.875 in step 3",
    ]
    assert [line[:21].strip() for line in said[6:8]] == ["time", "tokens"]
    assert said[8:] == [
        f"plot                 {run}/reward.png",
        f"view                 agentrl view {run}",
        f"TensorBoard          tensorboard --logdir {run}/tensorboard   # pip install tensorboard",
    ]


def test_a_loss_is_no_gain_and_what_is_not_there_is_not_told(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.train.report.find_spec", lambda name: None)
    lost = list(ended(0.5, start=[1, 0], final=[0, 0]).report(tmp_path))
    assert lost[2] == "  after RL             0.000 (0.000 to 0.000), -0.500 by reinforcement"

    imitated = list(ended().report(tmp_path))
    assert [line[:21].strip() for line in imitated] == ["time", "tokens", "view", "TensorBoard"]
    assert "no event files were written: tensorboardX is not installed" in imitated[-1]


def test_failed_and_unscored_evaluations_are_told(tmp_path):
    summary = ended(0.5, start=[None, None], final=[1, 1])
    assert (summary.eval_start, summary.eval_intervals["eval_start"]) == (None, None)
    assert list(summary.report(tmp_path))[1] == "  after RL             1.000 (1.000 to 1.000)"


@pytest.mark.parametrize(
    ("earned", "order"),
    [
        ({10: [1, 0], 20: [1, 1], 30: [0, 0]}, [20, 10, 30]),
        ({10: [1, 0], 20: [0, 1], 30: [0.4, 0.4]}, [10, 20, 30]),
        ({10: [None, None], 20: [0, 0]}, [20]),
        ({10: [1, None, None, None], 20: [0.5] * 4, 30: [0.75, 0.75, None, None]}, [30, 20]),
    ],
    ids=["by the mean", "of equals the earlier", "no mean", "scored of few tasks"],
)
def test_evaluations_are_ranked(earned, order):
    results = [result("final", step, rewards) for step, rewards in earned.items()]
    assert [best.step for best in ranked(results)] == order


def test_the_evaluation_after_a_warm_start_replaces_the_one_before():
    [best] = ranked([result("start", 0, [1, 1]), result("warm", 0, [0, 1])])
    assert best.name == "warm"
    assert HeldOut.from_json(best.line()) == best


def test_the_progress_line_shows_what_is_computed_twice():
    def shown(**update):
        return StepReport(1, RolloutMetrics(), update, 0.0, 1.0, 1.0).shown()

    assert shown(unique_tokens=200, computed_tokens=250)["computed_x"] == 1.25
    assert "computed_x" not in shown(unique_tokens=0, computed_tokens=0), "nothing was learned"
