"""The bill of a run: it adds up over processes, and what a kill lost is in it."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from agentrl.train import Trainer, train
from agentrl.train import bill as bills
from agentrl.train.bill import Bill, told_bill, told_cost


@pytest.fixture
def clock(monkeypatch):
    """`clock[0] = 5.0` sets the time."""
    now = [0.0]
    monkeypatch.setattr("agentrl.train.bill.time.monotonic", lambda: now[0])
    return now


def test_a_second_process_adds_to_the_bill(clock, tmp_path):
    file = tmp_path / "bill.json"
    for process in (1, 2):
        clock[0] = 1000.0 * process  # the time between two processes is free
        bill = Bill(usd_per_hour=3.6)
        bill.keep_in(file, on_gpu=False)
        clock[0] += 10
        with bill.phase("rollout"):
            clock[0] += 20
        bill.count(sampled=5, trained=7.0)
        bill.write()
    found = json.loads(file.read_text())
    assert (found["total_seconds"], found["seconds"]) == (60.0, {"rollout": 40.0, "rest": 20.0})
    assert found["tokens"] == {"sampled": 10, "trained": 14}
    assert (found["usd"], found["gpu_hours"]) == (0.06, 0.0)
    assert found["peak_gib"]["process"] > 0.01


def test_what_a_kill_lost_is_paid_for(clock, tmp_path):
    """A checkpoint holds the seconds of its own time. The bill is written on the way."""
    bill = Bill()
    bill.keep_in(tmp_path / "bill.json", on_gpu=False)
    with bill.phase("rollout"):
        clock[0] += 30
    again = Bill()  # the first was killed
    again.keep_in(tmp_path / "bill.json", on_gpu=False)
    assert again.to_json()["seconds"] == {"rollout": 30.0, "rest": 0.0}


def test_phases_that_overlap_count_in_full(clock):
    bill = Bill()
    with bill.phase("rollout"), bill.phase("train"):
        clock[0] += 8
    found = bill.to_json()
    assert (found["seconds"], found["total_seconds"]) == ({"train": 8.0, "rollout": 8.0, "rest": 0.0}, 8.0)


def test_a_run_of_an_older_version_has_its_seconds(clock, tmp_path):
    bill = Bill()
    bill.keep_in(tmp_path / "bill.json", on_gpu=False, seconds=100.0)
    assert bill.seconds == 100.0


def test_a_gpu(clock, monkeypatch, tmp_path):
    gib = 2**30
    monkeypatch.setattr(bills.torch.cuda, "mem_get_info", lambda: (50 * gib, 80 * gib))
    monkeypatch.setattr(bills.torch.cuda, "max_memory_allocated", lambda: 10 * gib)
    monkeypatch.setattr(bills.torch.cuda, "max_memory_reserved", lambda: 12 * gib)
    bill = Bill(usd_per_hour=2.0)
    bill.keep_in(tmp_path / "bill.json", on_gpu=True)
    with bill.phase("warm_start"):
        clock[0] += 900
    bill.count(imitated=1_234_567)
    found = bill.to_json()
    assert found["peak_gib"] == {"allocated": 10.0, "reserved": 12.0, "device": 30.0}
    assert (found["gpu_hours"], told_cost(found)) == (0.25, "15.0 minutes, $0.50")
    assert told_bill(found) == (
        "time                 15.0 minutes, $0.50 (warm start 900 s), 0.250 GPU hours",
        "tokens               1,234,567 imitated; memory at its peak: 30.0 GiB",
    )


@pytest.mark.thorough
def test_a_run_prints_and_keeps_its_bill(make_config, demonstrations, tmp_path):
    warm = {"demonstrations": demonstrations, "steps": 2, "batch_size": 4}
    config = make_config(warm_start=warm, eval_data=tmp_path / "tasks.jsonl", eval_tasks=2, usd_per_hour=36.0)

    class Killed(Trainer):
        async def step(self, step):
            if step == 2:
                raise KeyboardInterrupt
            return await super().step(step)

    with pytest.raises(KeyboardInterrupt):
        train(config, trainer=Killed, console=Console(file=io.StringIO(), width=200))
    console = Console(file=io.StringIO(), width=200)
    summary = train(config, resume=True, console=console)
    bill = json.loads((config.out / "summary.json").read_text())["bill"]
    assert bill == summary.bill
    assert {"start", "warm_start", "evaluation", "rollout", "train"} <= {k for k, v in bill["seconds"].items() if v}
    metrics = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert bill["tokens"]["sampled"] >= sum(line["sampled_tokens"] for line in metrics)
    assert bill["tokens"]["trained"] >= sum(line["read_tokens"] for line in metrics) > 0
    assert bill["tokens"]["imitated"] > 0 < bill["tokens"]["evaluated"]
    assert bill["usd"] == pytest.approx(bill["total_seconds"] / 100, abs=0.01)
    assert summary.seconds == pytest.approx(bill["total_seconds"], abs=1)
    said = console.file.getvalue()
    assert re.search(r"\ntime +\d+ seconds, \$0.\d\d \(", said), said
