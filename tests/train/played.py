"""What a run has written of its steps."""

from __future__ import annotations

import json

from agentrl.trajectory.trajectory import Trajectory

TIMES = ("seconds", "_s", "per_second")


def lines(folder):
    """The metrics of each step without what the clock says."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if not key.endswith(TIMES)} for line in found]


def played(folder):
    return {
        file.name: [Trajectory.from_json(json.loads(line)).tokens for line in file.read_text().splitlines()]
        for file in (folder / "trajectories").glob("step_*.jsonl")
    }
