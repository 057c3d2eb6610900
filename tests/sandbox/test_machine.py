"""What a machine holds, and what a container may use of it."""

from __future__ import annotations

import os

import pytest

from agentrl_sandbox import SandboxSpec, machine
from agentrl_sandbox.needs import needs


@pytest.mark.parametrize(
    ("files", "cores", "memory_mb"),
    [
        ({"cpu.max": "50000 100000\n", "memory.max": "268435456\n"}, 0.5, 256),
        (
            {
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "268435456",
            },
            0.5,
            256,
        ),
    ],
)
def test_the_limits_of_a_container(tmp_path, files, cores, memory_mb):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (machine.cores(tmp_path), machine.memory_mb(tmp_path)) == (cores, memory_mb)


@pytest.mark.parametrize("files", [{}, {"cpu.max": "max 100000\n", "memory.max": "max\n"}])
def test_without_limits_it_is_the_machine(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine.cores(tmp_path) == len(os.sched_getaffinity(0))
    assert machine.memory_mb(tmp_path) > 256


@pytest.mark.parametrize(
    ("spec", "holds"),
    [({}, 48), ({"memory_mb": 512}, 64), ({"cpus": 2.0}, 32), ({"memory_mb": 1 << 20}, 2)],
)
def test_what_a_machine_holds(monkeypatch, spec, holds):
    monkeypatch.setattr(machine, "cores", lambda: 16.0)
    monkeypatch.setattr(machine, "memory_mb", lambda: 64 << 10)
    assert machine.room(SandboxSpec(**spec)) == holds
    assert machine.Machine(16.0, 64 << 10).room(SandboxSpec(**spec)) == holds


@pytest.mark.parametrize(("engine", "told"), [("tcp://far:2375", False), ("unix:///no/socket", True), ("", True)])
def test_what_this_machine_holds_is_said_only_of_sandboxes_that_run_here(monkeypatch, engine, told):
    monkeypatch.setattr(machine, "cores", lambda: 1.0)
    monkeypatch.setattr(machine, "memory_mb", lambda: 1 << 10)
    monkeypatch.setenv("DOCKER_HOST", engine)
    said = needs("docker", SandboxSpec(), 64)[-1]
    assert "for 64 episodes at a time 64 sandboxes" in said
    assert ("a machine like this one holds" in said) == told
