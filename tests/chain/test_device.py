"""What the example does on a GPU, with torch's and Megatron's calls replaced: no shim, NCCL for one process."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest

from tests.chain.conftest import EXAMPLE

torch = pytest.importorskip("torch", reason="the example needs torch")


@pytest.fixture
def device(monkeypatch):
    """The example's module, new, on a machine with one GPU."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("device", "cpu_shims"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv("SLIME_ACCELERATOR", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    yield importlib.import_module("device")
    for name in ("device", "cpu_shims"):
        sys.modules.pop(name, None)


@pytest.fixture
def calls(monkeypatch):
    """A recorder of the calls that `join` makes, in their order."""
    calls = mock.Mock()
    core = ModuleType("megatron.core")
    core.parallel_state = SimpleNamespace(initialize_model_parallel=calls.groups)
    core.tensor_parallel = SimpleNamespace(
        model_parallel_cuda_manual_seed=calls.gpu_seed, random=SimpleNamespace(initialize_rng_tracker=calls.cpu_tracker)
    )
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    monkeypatch.setattr(torch.cuda, "set_device", calls.set_device)
    monkeypatch.setattr(torch.distributed, "init_process_group", calls.join)
    return calls


def made(calls):
    return [name for name, _, _ in calls.mock_calls]


def test_on_a_gpu_nothing_is_faked(device, calls):
    was = torch.cuda.current_device
    assert device.choose("auto") == "cuda"
    device.join(0, 1, 1234)
    device.register()
    with device.training(), device.building():
        assert torch.zeros(1).type() == "torch.FloatTensor"
    assert made(calls) == ["set_device", "join", "groups", "gpu_seed"]
    assert calls.join.call_args.args[0] == "cpu:gloo,cuda:nccl"
    assert torch.cuda.current_device is was
    assert "cpu_shims" not in sys.modules


def test_on_a_gpu_the_shims_cannot_be_imported(device):
    device.choose("cuda")
    with pytest.raises(ImportError, match="fakes a GPU and is for --device cpu; this run is on cuda"):
        importlib.import_module("cpu_shims")


def test_on_a_cpu_they_are_installed_even_beside_a_gpu(device, calls, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", torch.cuda.current_device)  # puts it back
    assert device.choose("cpu") == "cpu"
    device.join(0, 1, 1234)
    assert made(calls) == ["join", "groups", "cpu_tracker"]
    assert calls.join.call_args.args[0] == "gloo"
    with device.training():
        assert torch.zeros(1, device="cuda").type() == "torch.cuda.FloatTensor"
    assert torch.cuda.current_device() == torch.device("cpu")


@pytest.mark.parametrize(("world", "backend"), [(1, "cpu:gloo,cuda:nccl"), (2, "gloo")])
def test_nccl_does_not_join_two_processes_on_one_gpu(device, world, backend):
    device.choose("cuda")
    assert device.backend(world) == backend


def test_a_gpu_that_is_not_there_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda: torch sees no GPU; use --device cpu"):
        device.choose("cuda")
    assert device.choose("auto") == "cpu"
