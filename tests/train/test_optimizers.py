"""8-bit Adam by bitsandbytes, which the tests use where it is installed (43 MB), and Muon."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.errors import ConfigError
from agentrl.train import optimizers
from agentrl.train.learner import Learner
from agentrl.train.optimizers import make_adam, make_muon
from tests.train.learners import make, rows, weights


def bitsandbytes():
    return pytest.importorskip("bitsandbytes", reason="8-bit Adam needs the extra `8bit`")


def test_a_missing_one_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match=r"adamw_8bit needs bitsandbytes .*pip install 'agentrl-sdk\[8bit\]'"):
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


class Products(TorchDispatchMode):
    """The dtypes in which matrices are multiplied."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.dtypes.add(args[0].dtype)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("fast", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
def test_muon_multiplies_in_what_the_processor_is_fast_at(monkeypatch, fast, dtype):
    monkeypatch.setattr(optimizers, "_bfloat16_is_fast", lambda: fast)
    matrix = torch.ones(8, 12)
    matrix.grad = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    muon = make_muon([matrix], 0.1)
    with Products() as seen:
        muon.step()
    assert seen.dtypes == {dtype}


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
def test_muon_in_float32_steps_as_torchs_own(monkeypatch, shape):
    generator = torch.Generator().manual_seed(1)
    start, grads = torch.randn(shape, generator=generator), torch.randn(4, *shape, generator=generator)
    moved = []
    for fast in (True, False):
        monkeypatch.setattr(optimizers, "_bfloat16_is_fast", lambda fast=fast: fast)
        matrix = start.clone()
        muon = make_muon([matrix], 0.05)
        for grad in grads:
            matrix.grad = grad.clone()
            muon.step()
        moved.append(matrix - start)
    assert (moved[0] - moved[1]).norm() < 0.02 * moved[0].norm()  # bfloat16 keeps eight bits
