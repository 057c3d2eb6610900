"""A training run whose episodes are played by workers."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from agentrl import Trajectory
from agentrl.errors import ConfigError
from agentrl.train import train

COPIED, TOY = (__file__.replace("test_workers.py", name) for name in ("copied_engine.py", "toy_env.py"))


def episodes_of(config, step):
    lines = (config.out / "trajectories" / f"step_{step:06d}.jsonl").read_text().splitlines()
    return [Trajectory.from_json(json.loads(line)) for line in lines]


@pytest.mark.thorough
def test_a_run_with_workers(make_config):
    """The engine of the run, with its weights of each step, plays what the workers ask it."""
    config = make_config(workers=1, eval_every=1, eval_data=None)
    summary = train(config, console=Console(file=io.StringIO()))
    assert summary.steps == 2
    for step in (1, 2):
        episodes = episodes_of(config, step)
        assert len(episodes) == 12
        assert {episode.failure for episode in episodes} == {None}
        versions = {version for episode in episodes for version in episode.weight_versions}
        assert versions == {str(step - 1)}
    rows = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["logprob_diff_max"] for row in rows]
    assert gaps[0] < 1e-4, "the learner's own log-probs are those that the workers' tokens came with"


@pytest.mark.thorough
def test_a_loop_with_workers(make_config, tmp_path):
    """The rollout loop hands its episodes to the workers; weights change while they are played."""
    given = {"engine": f"{COPIED}:CopiedEngine", "steps": 4, "concurrency": 8, "at_once": {"step": 2}}
    evaluated = {"eval_data": tmp_path / "tasks.jsonl", "eval_every": 2, "eval_tasks": 4}
    failing = {"env": f"{TOY}:Flaky", "failures": {"again": 0, "least": 2}}
    config = make_config(workers=2, staleness=2, **given, **evaluated, **failing)
    assert train(config, console=Console(file=io.StringIO())).steps == 4
    rows = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    names = [episode.session_id for step in range(1, 5) for episode in episodes_of(config, step)]
    assert len(set(names)) == len(names) == 4 * 3 * 4
    for row in rows:
        trained = episodes_of(config, row["step"])
        assert {episode.failure for episode in trained} == {None}, "nobody can grade task 1: its groups are dropped"
        assert {int(v) for episode in trained for v in episode.weight_versions} <= set(range(row["step"]))
        assert row["token_age_max"] <= config.staleness
    assert rows[0]["logprob_diff_max"] < 1e-4
    assert any(row["token_age_max"] > 0 for row in rows)
    assert any("eval_reward_mean" in row for row in rows)


def test_a_bound_that_leaves_a_worker_none_is_refused(make_config):
    with pytest.raises(ConfigError, match=r"at_once\.step: 2 is divided among 3 workers; give 3 or more"):
        make_config(workers=3, at_once={"step": 2})
