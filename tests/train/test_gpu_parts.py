"""`make gpu DEVICE=cpu`, all of it: small, stopped once by its time, and continued. It takes two minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import PARTS, UNFINISHED

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_all_parts_run_small(tmp_path):
    results = tmp_path / "results.json"

    def gpu(*flags: str) -> int:
        command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(tmp_path / "out")]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(
            [*command, "--results", str(results), *flags], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        print(done.stdout[-4000:], done.stderr[-4000:])
        return done.returncode

    assert gpu("--part", "demo", "--seconds", "0.1") == UNFINISHED
    assert json.loads(results.read_text())["parts"]["demo"]["status"] == "unfinished"
    assert gpu() == 0
    parts = json.loads(results.read_text())["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(PARTS, "finished")
    speeds = [parts.pop(name)["result"] for name in ("learner", "engine")]
    assert all(speeds)
    for result in (part["result"] for part in parts.values()):
        assert len(result["curve"]) == result["steps"] == 2
        assert min(result["rollout_tokens_per_second"], result["train_tokens_per_second"]) > 0
        assert result["peak_gib"]["process"] > result.get("arithmetic_gib", {}).get("learning", 0) > -1
        assert all(score["interval"][0] <= score["mean"] for score in result["held_out_greedy_reward"].values())
        # A bfloat16 number has three digits: tokens' log-probs from two programs differ in the third.
        allowed = (1e-6, 0.05) if result["dtype"] == "bfloat16" else (0, 1e-4)
        assert allowed[0] <= result["engine_trainer_difference"]["mean"] < allowed[1]
