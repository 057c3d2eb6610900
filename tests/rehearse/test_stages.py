"""The hooks of stages, around functions with the names and arguments that slime's have."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest

from agentrl.rehearse.standins import events, stages
from tests.rehearse.calling import hooked


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def short(folder):
    return [(event["stage"], event["event"], event["rollout"]) for event in events.read(folder)]


def read_arguments(words):
    def parse_args():
        parser = argparse.ArgumentParser(exit_on_error=True)
        parser.add_argument("--number", type=int)
        return parser.parse_args(words)

    module = SimpleNamespace(parse_args=parse_args)
    stages.apply(module, stages.HOOKS["slime.utils.arguments"])
    return module.parse_args()


def test_the_arguments_are_logged(folder):
    assert read_arguments(["--number", "3"]).number == 3
    data = [event["data"] for event in events.read(folder) if event["event"] == "data"]
    assert data == [{"args": {"number": 3}}]


def test_a_wrong_argument_is_an_error_with_its_reason(folder, capsys):
    with pytest.raises(SystemExit):
        read_arguments(["--number", "three"])
    errors = [event["error"] for event in events.read(folder) if event["event"] == "error"]
    assert errors == ["ValueError: argument --number: invalid int value: 'three'"]
    assert "invalid int value" in capsys.readouterr().err


class Manager:
    """The methods of slime's RolloutManager that have hooks, with their order of calls."""

    rollout_id = -1

    def __init__(self, reward):
        self.reward = reward

    def _get_rollout_data(self, rollout_id):
        return [self.reward], None

    def _convert_samples_to_train_data(self, samples):
        return {"tokens": [[1, 2]], "loss_masks": [[1]], "raw_reward": [1 / samples[0]]}

    def _split_train_data_by_dp(self, data):
        return [data]

    def generate(self, rollout_id):
        self.rollout_id = rollout_id
        data, _ = self._get_rollout_data(rollout_id=rollout_id)
        return self._split_train_data_by_dp(self._convert_samples_to_train_data(data))

    def eval(self, rollout_id):
        return rollout_id


@pytest.fixture
def manager(monkeypatch):
    kind = type("Manager", (Manager,), {})
    module = SimpleNamespace(_start_router=lambda args: ("127.0.0.1", 1), RolloutManager=kind)
    stages.apply(module, stages.HOOKS["slime.ray.rollout"])
    return module


def test_a_rollout_has_a_conversion_after_it(folder, manager):
    assert manager._start_router(None) == ("127.0.0.1", 1)
    manager.RolloutManager(2).generate(4)
    manager.RolloutManager(2).eval(rollout_id=5)
    assert short(folder) == [
        ("router", "begin", None),
        ("router", "end", None),
        ("rollout", "begin", 4),
        ("rollout", "end", 4),
        ("conversion", "begin", 4),
        ("conversion", "end", 4),
        ("conversion", "begin", 4),
        ("conversion", "end", 4),
        ("evaluation", "begin", 5),
        ("evaluation", "end", 5),
    ]
    assert list((folder / "samples").iterdir())


def test_the_error_of_a_conversion_is_no_error_of_the_rollout(folder, manager):
    with pytest.raises(ZeroDivisionError):
        manager.RolloutManager(0).generate(0)
    assert [entry for entry in short(folder) if entry[1] == "error"] == [("conversion", "error", 0)]


def test_a_coroutine_is_a_stage_until_its_end(folder):
    @stages.during("evaluation")
    async def play():
        events.log("evaluation", "data")
        raise KeyError("answer")

    with pytest.raises(KeyError):
        asyncio.run(play())
    assert [event for _, event, _ in short(folder)] == ["begin", "data", "error"]


def test_a_module_without_the_functions_is_left_alone():
    module = SimpleNamespace(other=1)
    stages.apply(module, stages.HOOKS["slime.ray.rollout"])
    assert vars(module) == {"other": 1}


def test_a_class_behind_ray_is_wrapped():
    kind = type("Manager", (Manager,), {})
    actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=kind))
    assert stages.plain_class(actor) is kind
    assert stages.plain_class(kind) is kind


def test_metrics_are_logged_with_their_stage(folder):
    seen = []
    module = SimpleNamespace(log=lambda args, metrics, step_key: seen.append(metrics))
    stages.apply(module, stages.HOOKS["slime.observability.logging_utils"])
    for key in ("train/step", "rollout/step", "eval/step"):
        module.log(None, {key: 2, "x": 1.5}, step_key=key)
    assert len(seen) == 3
    assert [event["stage"] for event in events.read(folder)] == ["training", "rollout", "evaluation"]
    assert events.read(folder)[0]["data"] == {"step": 2, "metrics": {"train/step": 2, "x": 1.5}}


@pytest.mark.ray
@pytest.mark.thorough
def test_the_hooks_reach_rays_workers(folder):
    """Ray pickles a decorated class by value: the wrappers must work in the worker."""
    import ray

    with tempfile.TemporaryDirectory(prefix="ray-") as short_path:  # a socket's path has at most 107 bytes
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            runtime_env={"env_vars": {events.FOLDER_VARIABLE: str(folder)}},
            _temp_dir=short_path,
        )
        try:
            actor = ray.remote(Manager)
            stages.apply(SimpleNamespace(RolloutManager=actor), stages.HOOKS["slime.ray.rollout"])
            with pytest.raises(ray.exceptions.RayTaskError):
                ray.get(actor.remote(0).generate.remote(7))
        finally:
            ray.shutdown()
    assert ("conversion", "error", 7) in short(folder)

    assert {event["pid"] for event in events.read(folder)} != {os.getpid()}


_ROUTER = """
import sys
from sglang_router.launch_router import RouterArgs, launch_router
try:
    launch_router(RouterArgs(host="127.0.0.1", port=int(sys.argv[1])))
except Exception:
    pass  # as run_router of slime does
"""


def test_a_busy_port_is_an_error_of_the_router(tmp_path):
    pytest.importorskip("sglang_router")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-c", _ROUTER, str(server.getsockname()[1])]
        subprocess.run(words, env=hooked(tmp_path), check=True, capture_output=True, timeout=100)
    (error,) = (event for event in events.read(tmp_path) if event["event"] == "error")
    assert error["stage"] == "router"
    assert "in use" in error["error"]
