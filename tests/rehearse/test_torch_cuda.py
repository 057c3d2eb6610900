from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from agentrl.rehearse.standins import torch_cuda  # noqa: E402


def test_tensors_for_cuda_are_on_the_cpu():
    tensor = torch.ones(2)
    with torch_cuda.on_cpu():
        assert torch.empty(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2, device=torch.device("cuda", 1)).device.type == "cpu"
        assert tensor.cuda() is tensor
        assert tensor.to("cuda:0").device.type == "cpu"
        assert tensor.to("cuda", torch.bfloat16).dtype is torch.bfloat16
        assert not torch.empty_like(tensor, device="cpu", pin_memory=True).is_pinned()
        assert tensor.type() == "torch.cuda.FloatTensor"  # as Megatron's optimiser asks
    assert tensor.type() == "torch.FloatTensor"


def test_an_actors_methods_run_on_the_cpu():
    class Actor:
        def init(self):
            return torch.empty(1, device="cuda").device.type

        def other(self):
            return torch.empty(1, device="cuda")

    torch_cuda.wrap_actor(type("Module", (), {"MegatronTrainRayActor": Actor}))
    assert Actor().init() == "cpu"
    with pytest.raises((AssertionError, RuntimeError)):
        Actor().other()


_REPLACED = """
import torch
from agentrl.rehearse.standins import torch_cuda
torch_cuda.replace()
torch.cuda.set_device(3)
torch.cuda.synchronize()
assert torch.cuda.current_device() == torch.device("cpu")
assert torch.cuda.memory_allocated() == 0
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    stream.wait_stream(torch.cuda.current_stream())
    stream.record_event().synchronize()
torch.cuda.Event(enable_timing=True).record()
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
print("done")
"""


@pytest.mark.thorough
def test_torch_cuda_computes_on_the_cpu():
    process = subprocess.run([sys.executable, "-c", _REPLACED], capture_output=True, text=True, check=False)
    assert process.stdout == "done\n", process.stderr[-2000:]
