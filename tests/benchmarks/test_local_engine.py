"""benchmarks/bench_local_engine.py: importing it runs nothing, and its overhead is that of the same batch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="it measures an engine in torch")

from agentrl.models import tiny_model
from benchmarks import bench_local_engine as bench


@pytest.mark.thorough
def test_importing_it_makes_no_model():
    program = "import benchmarks.bench_local_engine as b; print(b.tiny.cache_info().currsize)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"


def test_step_and_bare_forward_pass_are_of_one_batch(monkeypatch):
    monkeypatch.setattr(bench, "ROWS", 4)
    seen, model = [], tiny_model().eval()
    forward = model.forward

    def watched(**given):
        seen.append((given["input_ids"].shape, type(given.get("past_key_values")).__name__))
        return forward(**given)

    model.forward = watched
    found = bench.overhead("tiny", model, 2)
    decoded = [names for shape, names in seen if shape == (4, 1)]
    assert sorted(decoded) == ["CacheBlock"] * 2 + ["Ready"] * 2
    assert found["overhead"] == pytest.approx(found["step_ms"] / found["bare_forward_ms"] - 1)
