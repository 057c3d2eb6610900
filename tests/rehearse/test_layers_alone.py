"""Megatron's model from the rehearsal's layers against transformers, with the packages of the registries alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.rehearse.calling import ROOT, hooked

MEGATRON = os.environ.get("MILES")
"""The folder with Megatron of miles-rl's wheel, as .ci/rehearse.sh sets it."""


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.skipif(not MEGATRON, reason="needs MILES, the folder of miles-rl's wheel: .ci/rehearse.sh sets it")
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "moe"])
def test_log_probs_are_those_of_transformers_and_gradients_survive_recomputation(tmp_path, kind):
    command = [sys.executable, str(ROOT / "tests/rehearse/layers_alone.py"), kind]
    done = subprocess.run(command, env=hooked(tmp_path, MEGATRON), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *_, recomputed, worst = done.stdout.splitlines()
    difference, largest = map(float, recomputed.removeprefix("recomputed ").split(" of "))
    assert difference < 1e-6 < largest
    assert float(worst.removeprefix("worst ")) < 1e-5
