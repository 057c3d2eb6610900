"""Collectives of the installed torch on a process group that is wrapped as slime wraps its groups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import distributed  # noqa: E402

from agentrl.rehearse.standins.megatron import forward_new_names  # noqa: E402


class Wrapped(distributed.ProcessGroup):
    """A part of slime/utils/reloadable_process_group.py: names of torch 2.9 only."""

    def __init__(self, group):
        super().__init__(group.rank(), group.size())
        self.group = group

    def _fwd(self, method, *args, **kwargs):
        return getattr(self.group, method)(*args, **kwargs)


@pytest.fixture
def gloo(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.parametrize("collective", ["all_gather_single", "reduce_scatter_single"])
def test_collectives_reach_the_wrapped_group(gloo, collective):
    """torch.distributed.all_gather_into_tensor and reduce_scatter_tensor call these methods."""
    source, target = torch.arange(4.0), torch.zeros(4)
    with pytest.raises(RuntimeError, match="No backend type"):
        getattr(Wrapped(gloo), collective)(target, source)
    reached = type("Reached", (Wrapped,), {})
    forward_new_names(SimpleNamespace(ReloadableProcessGroup=reached))
    getattr(reached(gloo), collective)(target, source).wait()
    assert target.tolist() == [0, 1, 2, 3]
