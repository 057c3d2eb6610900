"""A training run whose episodes are played by workers."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from agentrl import Trajectory
from agentrl.train import train


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_with_workers(make_config, staleness):
    """The engine of the run, with its weights of each step, plays what the workers ask it."""
    config = make_config(workers=1, staleness=staleness, eval_every=1, eval_data=None)
    summary = train(config, console=Console(file=io.StringIO()))
    assert summary.steps == 2
    for step in (1, 2):
        lines = (config.out / "trajectories" / f"step_{step:06d}.jsonl").read_text().splitlines()
        episodes = [Trajectory.from_json(json.loads(line)) for line in lines]
        assert len(episodes) == 12
        assert {episode.failure for episode in episodes} == {None}
        versions = {version for episode in episodes for version in episode.weight_versions}
        assert versions == {str(max(step - 1 - staleness, 0))}
    rows = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["logprob_diff_max"] for row in rows]
    assert gaps[0] < 1e-4, "the learner's own log-probs are those that the workers' tokens came with"
