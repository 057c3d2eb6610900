"""The short form of benchmarks/rollout.py: every part runs; its times are too short to say anything."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks import own_time
from benchmarks import rollout as bench


def test_flight():
    found = own_time.run(bench.flight(1.0, slots=16))
    assert found["episodes"] == 16
    assert found["turns_per_second"] > 0
    assert 0.8 < found["throughput_of_latency"] < 1.2


async def test_tail(monkeypatch):
    monkeypatch.delenv("SLIME_SRC", raising=False)
    found = await bench.tail(0.02, steps=12, groups=2, slots=8)
    assert len(found) == 8
    for row in found:
        assert 0 <= row["trainer_waits"] < 1
        assert row["age_max"] <= bench.STALENESS or row["rollout"].endswith("mask")
    in_turn = [row for row in found if row["rollout"] == "whole rollouts, in turn"]
    assert [row["age_max"] for row in in_turn] == [0, 0]


@pytest.mark.skipif("SLIME_SRC" not in os.environ, reason="SLIME_SRC is not set")
async def test_tail_of_slime(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "slime"]:
        monkeypatch.delitem(sys.modules, name)
    load = bench.Load(1.25, 2, 8, 8, 0.004)
    found = await bench.tail_slime(load, os.environ["SLIME_SRC"], 0.01)
    assert 0 <= found["trainer_waits"] < 1


@pytest.mark.thorough
def test_evaluation():
    found = own_time.run(bench.evaluation(1.0, slots=16, prompts=12, window_s=200.0))
    assert found["prompts"] == 12
    assert found["throughput_kept"] > 0
