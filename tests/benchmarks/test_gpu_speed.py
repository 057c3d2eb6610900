"""The parts learner and engine of `make gpu`, in their small form on a CPU, which runs for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the parts learn and sample")
pytest.importorskip("bm25s", reason="benchmarks.gpu_parts searches")
pytest.importorskip("peft", reason="the learner's part has LoRA")

import torch

from agentrl.errors import ConfigError
from agentrl.train.batch import Row
from benchmarks import gpu_speed
from benchmarks.gpu_parts import Job


@pytest.fixture
def job(tmp_path):
    return Job("learner", tmp_path, 60.0, True, "cpu", "tiny", None)


@pytest.fixture
def few_episodes(monkeypatch):
    monkeypatch.setattr(gpu_speed, "EPISODES", 4)
    monkeypatch.setattr(gpu_speed.bench_local_engine, "ROWS", 4)


def row(length):
    """Its second half is trained."""
    places = list(range(length // 2, length))
    return Row([number % 90 for number in range(length)], places, [1.0] * len(places), [-1.0] * len(places))


@pytest.mark.thorough
@pytest.mark.parametrize("trains", ["lora", "all"])
def test_updates_of_the_learner(tmp_path, trains):
    plan, rows = gpu_speed._SMALL, [row(40), row(80)]  # the second begins as the first
    updates = gpu_speed.Updates(plan.shapes[0], trains, rows, plan, "cpu", 0.5, tmp_path)
    found = updates.agentrl()
    parameters = plan.shapes[0].make("cpu").num_parameters()
    assert found["parameters"] == parameters
    assert found["how"] == "rows"
    assert found["computed_of_tokens"] == pytest.approx(79 / 118, abs=1e-3)
    share = 6 * parameters * 79 / found["update_s"] / 0.5e12
    assert found["share_of_peak"] == pytest.approx(share, rel=0.2, abs=1e-4)


def test_without_trl_the_row_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_speed.importlib.util, "find_spec", lambda name: None)
    plan = gpu_speed._SMALL
    updates = gpu_speed.Updates(plan.shapes[0], "all", [row(40)], plan, "cpu", None, tmp_path)
    assert updates.trl() == {"why": "trl and datasets not installed: pip install trl"}


def test_trl_learns_the_same_tokens():
    given = gpu_speed.learned_by_trl(Row(list(range(10)), [3, 5], [1.0, 1.0], [0.0, 0.0]))
    assert given == {"input_ids": [0, 1, 2, 3, 4, 5], "completion_mask": [0, 0, 0, 1, 0, 1]}


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA A10G", None),
    ],
)
def test_the_peak_by_the_name_of_the_device(device, peak):
    assert gpu_speed.peak_of(device) == peak


@pytest.mark.parametrize(
    ("shape", "billions"), list(zip(gpu_speed._ON_A_GPU.shapes, (0.596, 1.721, 4.022), strict=True))
)
def test_the_shapes_are_those_of_qwen3(shape, billions):
    assert shape.make("meta").num_parameters() / 1e9 == pytest.approx(billions, abs=1e-3)


@pytest.mark.thorough
def test_rows_are_of_both_kinds_and_of_real_lengths(tmp_path):
    rows = gpu_speed.real_rows(tmp_path, gpu_speed._SMALL)
    about = gpu_speed.lengths_of(rows)
    assert about["tokens"] >= gpu_speed._SMALL.tokens > about["tokens"] - rows[-1].length
    assert max(one.length for one in rows[::2]) < min(one.length for one in rows[1::2])  # the demo's are short


def test_a_case_is_measured_once_and_time_ends_between_cases(job):
    calls = []
    cases = {name: (lambda name=name: calls.append(name) or [{"by": name}]) for name in ("one", "two")}
    late = Job(**{**{name: getattr(job, name) for name in job.__slots__}, "seconds": -1.0})
    (job.folder / "cases.json").write_text(json.dumps({"one": [{"by": "one"}]}))
    assert gpu_speed.measured(late, cases) == {
        "status": "unfinished",
        "why": "its time is over before two; run it again",
    }
    assert gpu_speed.measured(job, cases)["result"] == {"table": [{"by": "one"}, {"by": "two"}]}
    assert calls == ["two"]


@pytest.mark.parametrize(
    ("error", "why"),
    [(torch.OutOfMemoryError("2 GiB"), "does not fit into this GPU's memory"), (ConfigError("no SGLang"), "no SGLang")],
)
def test_a_row_that_cannot_be_measured_has_the_reason(error, why):
    def fails():
        raise error

    assert gpu_speed.guarded({"by": "agentrl"}, fails) == {"by": "agentrl", "why": why}


def test_the_engine_samples_all_that_is_asked(job, few_episodes):
    local, sglang = gpu_speed.engine(job)["result"]["table"]
    assert local["sampled"] == 4 * gpu_speed._SMALL.turns * gpu_speed._SMALL.new_tokens
    assert local["overhead"] == pytest.approx(local["step_ms"] / local["bare_forward_ms"] - 1, abs=0.01)
    assert sglang["why"].startswith("not started on a CPU unless --sglang names an interpreter")


def test_an_interpreter_without_sglang_is_a_reason(job, few_episodes):
    given = Job(**{**{name: getattr(job, name) for name in job.__slots__}, "sglang": str(Path("no-such-python"))})
    _, sglang = gpu_speed.engine(given)["result"]["table"]
    assert "no-such-python: no such program" in sglang["why"]
