"""Megatron's model from the rehearsal's layers against transformers, with the packages of the registries alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.rehearse.standins import ENGINE, SITE

ROOT = Path(__file__).parents[2]
MEGATRON = os.environ.get("MILES")
"""The folder with Megatron of miles-rl's wheel, as .ci/rehearse.sh sets it."""


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.skipif(not MEGATRON, reason="needs MILES, the folder of miles-rl's wheel: .ci/rehearse.sh sets it")
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "moe"])
def test_log_probs_are_those_of_transformers(tmp_path, kind):
    path = [SITE, ENGINE, ROOT, ROOT / "envs", ROOT / "sandbox", MEGATRON]
    env = {
        **os.environ,
        "AGENTRL_REHEARSAL": str(tmp_path),
        "SLIME_ACCELERATOR": "cpu",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    command = [sys.executable, str(ROOT / "tests/rehearse/layers_alone.py"), kind]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout.splitlines()[-1].removeprefix("worst ")) < 1e-5
