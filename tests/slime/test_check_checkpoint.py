"""A run that continues a checkpoint, and the router's policy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from agentrl.slime import router
from agentrl.slime.check import check, read_command
from agentrl.slime.check.arguments import Args
from agentrl.slime.check.rules import routing
from agentrl.slime.check.setup import Setup
from tests.slime.checking import GOOD, findings, words
from tests.slime.checking import folder as folder

torch = pytest.importorskip("torch")

SAVED = {"num_rollout": 200, "rollout_batch_size": 4, "n_samples_per_prompt": 8, "global_batch_size": 32, "lr": 1e-6}
OVERRIDE = "add --override-opt_param-scheduler"


@pytest.fixture
def checkpoint() -> None:
    """A checkpoint of rollout 199, with the file of the arguments that Megatron writes."""
    iteration = Path("checkpoints/iter_0000199")
    iteration.mkdir(parents=True)
    Path("checkpoints/latest_checkpointed_iteration.txt").write_text("199\n")
    torch.save({"args": SimpleNamespace(seed=1, **SAVED, micro_batch_size=1), "step": 3}, iteration / "common.pt")


def of_checkpoint(**changes):
    flags = {"load": "checkpoints", "num_rollout": 300, **changes}
    return [(level, message) for level, message in findings(**flags) if "--load checkpoints" in message]


def test_an_extended_run_needs_the_override(checkpoint):
    ((level, message),) = of_checkpoint()
    assert (level, message) == (
        "error",
        "--load checkpoints was trained with --num-rollout 200, and Megatron refuses another schedule of the learning "
        f"rate: {OVERRIDE}",
    )
    flags = words({**GOOD, "load": "checkpoints", "num-rollout": 300})
    for flag in ("override-opt_param-scheduler", "use-checkpoint-opt_param-scheduler", "finetune", "no-load-optim"):
        report = check(read_command([*flags, f"--{flag}"]))
        assert [finding.message for finding in report if "checkpoints" in finding.message] == []


def test_a_finished_run_leaves_nothing_to_train(checkpoint):
    ((level, message),) = of_checkpoint(num_rollout=200)
    assert (level, message.startswith("--load checkpoints has rollout 199, so --num-rollout 200 leaves nothing")) == (
        "warning",
        True,
    )
    assert OVERRIDE in message


@pytest.mark.parametrize(
    ("text", "changes", "count"),
    [
        ("99", {"num_rollout": 200}, 0),  # interrupted
        ("99", {"num_rollout": 300}, 1),
        ("99", {"num_rollout": 100, "rollout_batch_size": 8, "global_batch_size": 64}, 1),  # finished
        ("49", {"num_rollout": 100, "rollout_batch_size": 8}, 0),  # as many samples
        ("49", {"num_rollout": 200, "global_batch_size": None, "num_steps_per_rollout": 1}, 0),
        ("release", {}, 0),
        ("", {}, 0),
    ],
)
def test_only_another_schedule_is_reported(checkpoint, text, changes, count):
    Path("checkpoints/latest_checkpointed_iteration.txt").write_text(text)
    if text.isdigit():
        Path("checkpoints/iter_0000199").rename(f"checkpoints/iter_{int(text):07d}")
    assert len(of_checkpoint(**changes)) == count


@pytest.mark.parametrize("content", [None, b"", b"not a file of torch"])
def test_a_checkpoint_that_cannot_be_read_is_no_finding(checkpoint, content):
    file = Path("checkpoints/iter_0000199/common.pt")
    file.unlink() if content is None else file.write_bytes(content)
    assert of_checkpoint() == []


# The router


@pytest.fixture
def installed(monkeypatch):
    """`installed(*policies)`: a package sglang_router whose command line takes these policies."""

    def install(*policies):
        class RouterArgs:
            @staticmethod
            def add_cli_args(parser: argparse.ArgumentParser) -> None:
                parser.add_argument("--policy", choices=policies)

        module = ModuleType("sglang_router.router_args")
        module.RouterArgs = RouterArgs
        monkeypatch.setitem(sys.modules, "sglang_router", ModuleType("sglang_router"))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def of_router(**changes):
    return [message for _, message in findings(**changes) if "router-policy" in message]


PYPI = ("random", "round_robin", "cache_aware", "power_of_two", "manual")


def test_check_advises_what_the_installed_router_takes(installed, monkeypatch):
    installed("cache_aware", "consistent_hashing")
    assert "add --router-policy consistent_hashing: " in of_router(router_policy=None)[0]
    installed(*PYPI)
    assert "add --router-policy manual: " in of_router(router_policy=None)[0]
    assert of_router(router_policy="manual") == []
    installed("cache_aware")
    assert of_router(router_policy=None) == []
    monkeypatch.setitem(sys.modules, "sglang_router.router_args", None)
    assert "add --router-policy consistent_hashing: " in of_router(router_policy=None)[0]


def test_check_refuses_what_the_installed_router_refuses(installed, tmp_path):
    installed(*PYPI)
    assert of_router() == []  # slime runs elsewhere, with another router
    setup = Setup(Args({"router_policy": "consistent_hashing"}), read_command(words(GOOD)), None, None, here=True)
    assert [finding.message for finding in routing(setup)] == [
        f"--router-policy consistent_hashing: the installed sglang_router takes {', '.join(PYPI)}; write manual"
    ]


def test_the_policy_of_a_router_that_is_really_installed(monkeypatch):
    monkeypatch.undo()
    pytest.importorskip("sglang_router")
    assert router.policies()
    assert router.sticky_policy() in router.STICKY
