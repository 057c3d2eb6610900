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
    ("final", "verdict", "gain"),
    [
        ((0.9, 0.8, 1.0), "learned", 0.5),
        ((1.0, 1.0, 1.0), "learned", 0.6),
        ((0.5, 0.3, 0.7), "unchanged", 0.1),
        ((0.4, 0.4, 0.4), "unchanged", 0.0),
        ((0.1, 0.0, 0.2), "worse", -0.3),
        ((None, None, None), "not_evaluated", None),
    ],
)
def test_the_verdict_compares_the_interval_after_rl_with_the_mean_before(tmp_path, final, verdict, gain):
    run = written(tmp_path / "run", start=(0.0, 0.0, 0.0), warm=(0.4, 0.2, 0.6), final=final)

    document = outcome(run)

    assert (document["verdict"], document["gain_by_rl"]) == (verdict, gain)
    assert document["held_out"]["after_imitation"]["mean"] == 0.4
    assert (document["steps"], document["first_step"]["reward_mean"], document["last_step"]["reward_mean"]) == (
        3,
        0.25,
        0.75,
    )
    assert document["paths"]["metrics"] == f"{run}/metrics.jsonl"
    assert "model" not in document["paths"], "a path that does not exist is not listed"


@pytest.mark.parametrize(
    ("warm", "line", "advice"),
    [
        (0.95, {}, "the imitation alone earns 0.95"),
        (0.4, {"truncation_rate": 0.5}, "50% of the last episodes are cut: raise limits.max_tokens_per_turn"),
        (0.4, {"zero_advantage_groups": 8}, "the episodes of each group of the first step got equal rewards"),
        (0.4, {}, "the sampled reward rose"),
    ],
)
def test_a_run_that_did_not_learn_has_a_remedy(tmp_path, monkeypatch, warm, line, advice):
    for key, value in line.items():
        monkeypatch.setitem(STEP, key, value)
    document = outcome(written(tmp_path / "run", start=(0.0, 0.0, 0.0), warm=(warm, 0.2, 1.0), final=(warm, 0.2, 1.0)))
    assert document["verdict"] == "unchanged"
    assert document["advice"].startswith(advice)


def test_a_run_that_learned_needs_no_advice(tmp_path):
    run = written(tmp_path / "run", start=(0.0, 0.0, 0.0), warm=(0.4, 0.2, 0.6), final=(0.9, 0.8, 1.0))
    assert outcome(run)["advice"] is None


def test_without_a_warm_start_the_untrained_model_is_the_base(tmp_path):
    document = outcome(written(tmp_path / "run", start=(0.1, 0.0, 0.2), final=(0.9, 0.8, 1.0)))
    assert (document["verdict"], document["gain_by_rl"], document["held_out"]["after_imitation"]) == (
        "learned",
        0.8,
        None,
    )


def test_a_run_without_a_step_of_rl_has_no_verdict_about_rl(tmp_path):
    document = outcome(written(tmp_path / "run", steps=0, start=(0.0, 0.0, 0.0), final=(0.9, 0.8, 1.0)))
    assert (document["verdict"], document["gain_by_rl"], document["first_step"]) == ("not_evaluated", None, None)


@pytest.mark.parametrize(
    ("code", "verdict"), [(3, "stopped"), (130, "interrupted"), (143, "interrupted"), (1, "failed")]
)
def test_a_run_that_stopped_keeps_its_figures_and_warnings(tmp_path, code, verdict):
    run = written(tmp_path / "run", start=(0.0, 0.0, 0.0))
    event = {"step": 2, "kind": "canary", "message": "nothing differs", "time": 0.0}
    (run / "events.jsonl").write_text(json.dumps(event) + '\n{"step": 3, "kin')

    document = outcome(run, exit_code=code, error="stopped: because")

    assert (document["verdict"], document["exit_code"], document["error"]) == (verdict, code, "stopped: because")
    assert document["warnings"] == [{"step": 2, "message": "nothing differs"}]
    assert document["held_out"]["before"]["mean"] == 0.0


def test_a_command_that_began_no_run_has_the_same_fields(tmp_path):
    refused, done = outcome(None, exit_code=2, error="error: no"), outcome(written(tmp_path / "run"))
    assert refused.keys() == done.keys()
    assert refused["held_out"].keys() == done["held_out"].keys()
    assert (refused["verdict"], refused["paths"], refused["warnings"]) == ("failed", {}, [])
