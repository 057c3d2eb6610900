"""Megatron's model from the rehearsal's layers, loaded by slime, against transformers' own numbers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.rehearse.calling import hooked

HERE = Path(__file__).parent
PROBE = HERE / "layers_probe.py"
SLIME = os.environ.get("SLIME_SRC")
MEGATRON = os.environ.get("MILES")
"""The folder with Megatron of miles-rl's wheel, as .ci/rehearse.sh sets it."""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SLIME, reason="needs SLIME_SRC, the root of slime's source"),
    pytest.mark.skipif(not (MEGATRON or find_spec("megatron")), reason="needs MILES, the folder of miles-rl's wheel"),
]


def run(folder, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = [SLIME, *filter(None, [MEGATRON])]
    env = hooked(folder / "rehearsal", *path, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    layout = arguments[-1]
    ranks = 2 if layout in ("tp", "sp", "cp", "ep") else 1
    processes = []
    for rank in range(ranks):
        words = [word.format(rank=rank, ranks=ranks) for word in arguments]
        command = [sys.executable, str(PROBE), *words]
        processes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), outputs[0][-3000:]
    return outputs


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in ("qwen2", "qwen3", "moe"):
        subprocess.run([sys.executable, str(PROBE), "make", kind, str(folder / kind)], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen2", ""),
        ("qwen3", ""),
        ("moe", ""),
        ("qwen2", "tp"),
        ("qwen3", "sp"),
        ("qwen3", "cp"),
        ("moe", "ep"),
        ("moe", "sp"),
    ],
)
def test_log_probs_are_those_of_transformers(models, tmp_path, kind, layout):
    for output in run(tmp_path, kind, str(models / kind), "{rank}", "{ranks}", layout):
        worst = next(line for line in output.splitlines() if line.startswith("worst "))
        assert float(worst.split()[1]) < 1e-5
        if not layout:
            assert "\nwrong:\n" in f"{output}\n"
            count, difference = next(line for line in output.splitlines() if line.startswith("gradients ")).split()[1:]
            assert int(count) > 10
            assert float(difference) < 1e-3
