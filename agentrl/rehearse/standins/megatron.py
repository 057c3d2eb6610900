"""Megatron's start, layers and optimiser on a CPU, in slime's Megatron backend."""

from __future__ import annotations

import sys
from functools import partialmethod
from typing import Any

from agentrl.rehearse.standins.imports import after

_BACKENDS = ("slime.backends.megatron_utils", "miles.backends.megatron_utils")


@after(*(f"{backend}.initialize" for backend in _BACKENDS))
def start(module: Any) -> None:
    """Let slime/backends/megatron_utils/initialize.py accept numpy 2, and seed without a GPU's random states.

    Megatron's tracker for inference keeps no states: dropout is not reproduced.
    """
    import numpy as np
    from megatron.core.tensor_parallel import random

    def seed(*args: Any, **kwargs: Any) -> None:
        random.initialize_rng_tracker(inference_rng_tracker=True)

    module.np = _NumPy1(np)
    module.tensor_parallel = _Replaced(module.tensor_parallel, model_parallel_cuda_manual_seed=seed)


_NEW_NAMES = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
)
"""The methods by which torch 2.13 calls a process group's collectives."""


@after("slime.utils.reloadable_process_group", "miles.utils.reloadable_process_group")
def forward_new_names(module: Any) -> None:
    """Forward the collectives of torch 2.13, too: slime was written for torch 2.9, which had other names."""
    group = module.ReloadableProcessGroup
    for name in _NEW_NAMES:
        if name not in vars(group):
            setattr(group, name, partialmethod(group._fwd, name))


class _Replaced:
    """A module with some replaced attributes, for one importer only."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _NumPy1(_Replaced):
    __version__ = "1.26.4"


@after("megatron.core.models.gpt.gpt_layer_specs")
def replace_layers(module: Any) -> None:
    """Let megatron/core/models/gpt/gpt_layer_specs.py build TransformerEngine's models from layers of torch."""
    from agentrl.rehearse.standins import layers
    from agentrl.rehearse.standins.norm import Norm

    module.TESpecProvider, module.TENorm, module.HAVE_TE = layers.TorchSpecProvider, Norm, True


@after("megatron.core.transformer.torch_norm")
def replace_norm(module: Any) -> None:
    """Let the norms of megatron/core/transformer/transformer_block.py and others accept sequence parallelism."""
    from agentrl.rehearse.standins.norm import Norm

    module.WrappedTorchNorm = Norm


@after("megatron.core.optimizer.distrib_optimizer")
def make_optimizer_state(module: Any) -> None:
    """Let `DistributedOptimizer.state_dict` see a state for each parameter before the first step, so that slime can
    resume. TransformerEngine's Adam has a state from the start; torch's Adam has none."""
    import torch

    state_dict = module.DistributedOptimizer.state_dict

    def with_state(self: Any) -> Any:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                state.setdefault("step", torch.tensor(0.0))
                state.setdefault("exp_avg", torch.zeros_like(parameter.data))
                state.setdefault("exp_avg_sq", torch.zeros_like(parameter.data))
        return state_dict(self)

    module.DistributedOptimizer.state_dict = with_state


@after("megatron.core.transformer.moe.moe_utils")
def route_without_gpu(module: Any) -> None:
    """Let megatron/core/transformer/moe/moe_utils.py route tokens without TransformerEngine, whose product of matrices
    has no name if its import failed, and turn counts of tokens into numbers that are on the CPU already."""
    if not hasattr(module, "te_general_gemm"):
        module.te_general_gemm = None
    move = module.maybe_move_tensor_to_cpu

    def to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        moved = move(tensor, as_numpy=as_numpy, record_stream=record_stream)
        return moved.numpy() if as_numpy and hasattr(moved, "numpy") else moved

    module.maybe_move_tensor_to_cpu = to_cpu


@after("miles.utils.replay_base")
def replay_routing(module: Any) -> None:
    """Let the Megatron of miles-rl's wheel record and replay experts by slime/utils/routing_replay.py.

    slime's own Megatron calls slime's functions at the same two places, by docker/patch/latest/megatron.patch.
    """
    if "slime" in sys.modules:
        module.routing_replay_manager = _SlimeReplay()


class _SlimeReplay:
    """The two methods of miles' manager that Megatron calls."""

    def register_to_module(self, module: Any, attr_name: str) -> None:
        from slime.utils.routing_replay import register_routing_replay

        register_routing_replay(module)

    def get_topk_fn(self, old_topk_fn: Any, return_probs: bool) -> Any:
        from slime.utils.routing_replay import get_routing_replay_compute_topk

        return get_routing_replay_compute_topk(old_topk_fn)
