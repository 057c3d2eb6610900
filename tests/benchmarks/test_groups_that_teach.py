"""The short form of benchmarks/groups_that_teach.py: each part with a model that takes seconds."""

from __future__ import annotations

import json

import pytest

from benchmarks import groups_that_teach as bench
from tests.train.conftest import make_config, small_model

__all__ = ["make_config", "small_model"]


@pytest.fixture
def base(make_config, monkeypatch):
    """The toy's settings in place of the demo's."""
    monkeypatch.setattr("agentrl.train.trainer.draw_curve", lambda metrics, evals, file: True)
    config = make_config(steps=6)
    given = json.loads(config.model_dump_json(exclude={"out", "seed", "prompts_per_step", "group_size"}))
    return {**given, "prompts_per_step": 2, "group_size": 2}


@pytest.mark.thorough
def test_every_part_runs_and_is_not_run_twice(base, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "ONE_EACH", {**bench.ONE_EACH, "prompts_per_step": 4})
    rows = {name: part(base, tmp_path, 0) for name, part in bench.PARTS.items()}

    grpo, flash = rows["flash"]
    assert (grpo["run"], flash["run"]) == ("grpo", "flash_reinforce")
    assert grpo["sampled_tokens"] > 0 < flash["sampled_tokens"]
    assert rows["refill"][0] == grpo, "played once"
    assert rows["refill"][1]["teaching_share"] >= rows["refill"][1]["teaching_share_drawn"]
    (taught,) = rows["distill"]
    assert taught["teacher_kl"] != 0.0
    assert (tmp_path / "distill-0" / "config.yaml").read_text().count(str(tmp_path / "grpo-0")) == 1
    monkeypatch.setattr(bench, "train", None)
    assert bench.flash(base, tmp_path, 0) == rows["flash"]


def test_tokens_are_counted_until_five_steps_are_good():
    def steps(*rewards):
        return [{"reward_mean": reward, "sampled_tokens": 10} for reward in rewards]

    assert bench.tokens_to_reach(steps(0.0, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)) == 60
    assert bench.tokens_to_reach(steps(*[0.7] * 30)) is None
    assert bench.tokens_to_reach(steps(1.0, 1.0)) is None
