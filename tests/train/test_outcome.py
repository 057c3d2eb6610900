"""The outcome of a run for programs: a verdict, the figures behind the verdict, and the places of the files."""

from __future__ import annotations

import json

import pytest

from agentrl.train.outcome import outcome

STEP = {"reward_mean": 0.5, "groups": 8, "zero_advantage_groups": 2, "stops": {"done": 64}}


def written(folder, *, steps=3, **evaluations):
    """A run folder with these evaluations, by name: mean, low and high."""
    folder.mkdir()
    rows = [
        {
            "name": name,
            "step": steps if name == "final" else 0,
            "mean": mean,
            "interval": [low, high],
            "tasks": 14,
            "failed": 0,
        }
        for name, (mean, low, high) in evaluations.items()
    ]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = [{"step": step, **STEP, "reward_mean": step / 4} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return folder


@pytest.mark.parametrize(
    ("final", "result", "gain"),
    [
        ((0.9, 0.8, 1.0), "learned", 0.5),
        ((1.0, 1.0, 1.0), "learned", 0.6),
        ((0.5, 0.3, 0.7), "unchanged", 0.1),
        ((0.4, 0.4, 0.4), "unchanged", 0.0),
        ((0.1, 0.0, 0.2), "worse", -0.3),
        ((None, None, None), "not_evaluated", None),
    ],
)
def test_the_verdict_compares_the_interval_after_rl_with_the_mean_before(tmp_path, final, result, gain):
    run = written(tmp_path / "run", start=(0.0, 0.0, 0.0), warm=(0.4, 0.2, 0.6), final=final)

    document = outcome(run)

    assert (document["outcome"], document["gain_by_rl"]) == (result, gain)
    assert document["held_out"]["after_imitation"]["mean"] == 0.4
    assert (document["steps"], document["first_step"]["reward_mean"], document["last_step"]["reward_mean"]) == (
        3,
        0.25,
        0.75,
    )
    assert document["paths"]["metrics"] == f"{run}/metrics.jsonl"
    assert "model" not in document["paths"], "a path that does not exist is not listed"


def test_the_verdicts_are_those_of_the_run(tmp_path):
    run = written(tmp_path / "run", steps=6, start=(0.0, 0.0, 0.0), warm=(0.4, 0.2, 0.6), final=(0.4, 0.2, 0.6))
    lines = [{"step": step, **STEP, "episodes": 64, "zero_advantage_groups": 8} for step in range(1, 7)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    document = outcome(run)

    assert document["outcome"] == "unchanged"
    assert [verdict["name"] for verdict in document["verdicts"]] == ["equal_rewards"]
    assert document["verdicts"][0]["text"].startswith("The last steps teach nothing: in 100% of the groups")


def test_without_a_warm_start_the_untrained_model_is_the_base(tmp_path):
    document = outcome(written(tmp_path / "run", start=(0.1, 0.0, 0.2), final=(0.9, 0.8, 1.0)))
    assert (document["outcome"], document["gain_by_rl"], document["held_out"]["after_imitation"]) == (
        "learned",
        0.8,
        None,
    )


def test_a_run_without_a_step_of_rl_has_no_verdict_about_rl(tmp_path):
    document = outcome(written(tmp_path / "run", steps=0, start=(0.0, 0.0, 0.0), final=(0.9, 0.8, 1.0)))
    assert (document["outcome"], document["gain_by_rl"], document["first_step"]) == ("not_evaluated", None, None)


@pytest.mark.parametrize(
    ("code", "result"), [(3, "stopped"), (130, "interrupted"), (143, "interrupted"), (1, "failed")]
)
def test_a_run_that_stopped_keeps_its_figures_and_warnings(tmp_path, code, result):
    run = written(tmp_path / "run", start=(0.0, 0.0, 0.0))
    event = {"step": 2, "kind": "canary", "message": "nothing differs", "time": 0.0}
    (run / "events.jsonl").write_text(json.dumps(event) + '\n{"step": 3, "kin')

    document = outcome(run, exit_code=code, error="stopped: because")

    assert (document["outcome"], document["exit_code"], document["error"]) == (result, code, "stopped: because")
    assert document["warnings"] == [{"step": 2, "message": "nothing differs"}]
    assert document["held_out"]["before"]["mean"] == 0.0


def test_a_command_that_began_no_run_has_the_same_fields(tmp_path):
    refused, done = outcome(None, exit_code=2, error="error: no"), outcome(written(tmp_path / "run"))
    assert refused.keys() == done.keys()
    assert refused["held_out"].keys() == done["held_out"].keys()
    assert (refused["outcome"], refused["paths"], refused["warnings"]) == ("failed", {}, [])
