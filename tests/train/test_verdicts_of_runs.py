"""Verdicts of real runs that were made to have a cause, and of runs that learn."""

from __future__ import annotations

import json

import pytest

from agentrl.errors import CanaryError
from agentrl.monitor.run_figures import RunFigures
from agentrl.monitor.verdicts import causes
from agentrl.train import train
from tests.train.toy_runs import TOY, quiet

PLANTED = {
    "equal_rewards": {"reward": f"{TOY}:same"},
    "hardly_changes": {"learning_rate": 1e-9},
    "only_in_training": {"env": f"{TOY}:Contrary", "learning_rate": 0.03},
    "cut": {"env": f"{TOY}:Endless", "learning_rate": 1e-5},
    "no_tool": {"env": f"{TOY}:Tools", "learning_rate": 1e-5},
}


@pytest.fixture
def run(make_config, tmp_path):
    """Train for 12 steps on ten tasks, with twenty held-out tasks."""
    rows = [json.dumps({"prompt": f"say {i}", "label": 0.0, "id": str(i)}) + "\n" for i in range(30)]
    for name, part in (("seen", rows[:10]), ("held", rows[10:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))

    def start(**values):
        given = {
            "data": tmp_path / "seen.jsonl",
            "eval_data": tmp_path / "held.jsonl",
            "steps": 12,
            "group_size": 6,
            "learning_rate": 0.01,
            "limits": {"turns": 2, "max_tokens_per_turn": 8, "context": 200},
        }
        console = quiet()
        try:
            train(make_config(**{**given, **values}), console=console)
        except CanaryError:
            assert "verdict  " in console.file.getvalue(), "a run that a canary stops says the causes, too"
        return [verdict.name for verdict in causes(RunFigures.read(tmp_path / "run"))]

    return start


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_run_that_has_a_cause_says_so(run, name):
    assert name in run(**PLANTED[name])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "values", [{}, {"algorithm": "dr_grpo"}, {"env": f"{TOY}:Odd"}], ids=["grpo", "dr_grpo", "odd"]
)
def test_a_run_that_learns_hears_of_no_cause(run, values):
    assert run(**values) == []
