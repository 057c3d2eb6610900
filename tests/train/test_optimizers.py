"""8-bit Adam by bitsandbytes, which the tests use where it is installed: it has 43 MB."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.train.learner import Learner
from agentrl.train.optimizers import make_adam
from tests.train.test_learner import make, rows, weights


def bitsandbytes():
    return pytest.importorskip("bitsandbytes", reason="8-bit Adam needs the extra `8bit`")


def test_a_missing_one_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match=r"adamw_8bit needs bitsandbytes .*pip install -e '.\[8bit\]'"):
        make_adam("adamw_8bit", [torch.zeros(3)], 1e-3)


def test_one_that_cannot_step_on_the_device_is_told_at_once(monkeypatch):
    class Broken:
        def __init__(self, *_):
            pass

        def step(self):
            raise NotImplementedError("no kernel\nfor cpu")

    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", SimpleNamespace(AdamW8bit=Broken))
    says = r"adamw_8bit does not work on cpu \(NotImplementedError: no kernel for cpu\); use adamw"
    with pytest.raises(ConfigError, match=says):
        make_adam("adamw_8bit", [torch.zeros(3)], 1e-3)


def test_eight_bits_learn_nearly_the_same(make_config):
    bitsandbytes()
    learners = [make(make_config, optimizer=name, minibatches=1) for name in ("adamw", "adamw_8bit")]
    start = weights(learners[0]).clone()
    for learner in learners:
        given = rows(learner)
        for step in range(1, 4):
            learner.learn(given, step=step, normaliser=100)
    moved, off = weights(learners[0]) - start, weights(learners[0]) - weights(learners[1])
    assert 0 < off.norm() < 0.2 * moved.norm()

    state = learners[1].optimizer.state
    kept = sum(v.nbytes for of_one in state.values() for v in of_one.values() if isinstance(v, torch.Tensor))
    assert kept < 2.5 * sum(p.numel() for p in learners[1].parameters)


def test_its_state_goes_on_exactly(make_config):
    bitsandbytes()
    straight, stopped = (make(make_config, optimizer="adamw_8bit") for _ in range(2))
    given = rows(straight)
    for learner in (straight, stopped):
        learner.learn(given, step=1, normaliser=100)
    torch.save(stopped.state_dict(), file := make_config().out.with_name("state.pt"))

    again = Learner(copy.deepcopy(stopped.model), stopped.config)
    again.load_state_dict(torch.load(file, weights_only=True))

    for learner in (straight, again):
        learner.learn(given, step=2, normaliser=100)
    assert torch.equal(weights(straight), weights(again))
