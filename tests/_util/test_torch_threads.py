"""Torch's threads sleep while they wait, wherever agentrl imports torch. OpenMP itself reports how they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="models need the extra `train`")
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")


def said(code: str, **variables: str) -> str:
    """What OpenMP and the program write."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stderr + done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        "import agentrl.train; agentrl.train.Trainer",
        "from agentrl.engine import LocalEngine",
        "import sys; sys.argv = ['agentrl', '--version']\ntry: agentrl_main()\nexcept SystemExit: import torch",
    ],
)
def test_its_threads_sleep_while_they_wait(code: str) -> None:
    out = said(code.replace("agentrl_main", "__import__('agentrl.cli', fromlist=['main']).main"))
    if "OMP_WAIT_POLICY" not in out:
        pytest.skip("torch was built without GNU's OpenMP")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in out
    assert "GOMP_SPINCOUNT = '0'" in out


@pytest.mark.thorough
def test_the_users_choice_stays() -> None:
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in said("from agentrl.engine import LocalEngine", OMP_WAIT_POLICY="active")
    assert "GOMP_SPINCOUNT = '1000'" in said("from agentrl.engine import LocalEngine", GOMP_SPINCOUNT="1000")


@pytest.mark.thorough
def test_a_torch_that_came_first_is_told() -> None:
    logged = "import logging; logging.basicConfig(); import torch; import agentrl.train, agentrl.engine.local"
    assert said(logged).count("torch was imported before agentrl") == 1
    assert "torch was imported before" not in said(logged, OMP_WAIT_POLICY="passive")
    assert "torch was imported before" not in said(logged, OMP_NUM_THREADS="1")
