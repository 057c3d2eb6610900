"""slime's side: its own functions on the same episodes, its micro-batches put together as its trainer does.

slime is not on PyPI: set SLIME_SRC to the root of its source. Its loss needs megatron-core; gloo stands in for NCCL.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl import Trajectory
from tests.parity.embedded import LENGTH, Models, config
from tests.parity.episodes import log_probs

SOURCE = os.environ.get("SLIME_SRC", "")
MICRO_BATCHES = 2

_STAND_INS: dict[str, dict[str, Any]] = {
    "wandb": {},
    "sglang": {"__path__": []},
    "sglang.srt": {"__path__": []},
    "sglang.srt.constants": {f"GPU_MEMORY_TYPE_{kind}": kind for kind in ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS")},
    "sglang.srt.server_args": {"ServerArgs": object},
    "sglang.srt.utils": {"kill_process_tree": None},
}
"""What slime.ray.rollout imports beside its arithmetic."""


@dataclass
class Found:
    loss: float
    gradients: dict[str, Tensor]
    logged: dict[str, float]
    """Summed over the micro-batches."""
    tokens: int
    """What slime divides a per-token loss by."""
    advantages: list[Tensor]


@contextmanager
def slime_modules() -> Iterator[SimpleNamespace]:
    """slime's loss and its rollout manager, with model parallelism of one process set up; undone at the end."""
    for name in ("megatron.core", "ray", "httpx", "sympy", "pylatexenc", "tqdm", "PIL", "requests"):
        pytest.importorskip(name, reason=f"slime needs {name}")
    import torch.distributed as dist
    from megatron.core import mpu

    before = set(sys.modules)
    sys.path.insert(0, SOURCE)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mpu.initialize_model_parallel()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = importlib.import_module("slime.backends.megatron_utils.loss")
            for name, values in _STAND_INS.items():
                vars(sys.modules.setdefault(name, ModuleType(name))).update(values)
            manager = importlib.import_module("slime.ray.rollout")
        # It compiles its formulas; what is to be compared is what they say, not how they are fused.
        with torch.compiler.set_stance("force_eager"):
            yield SimpleNamespace(loss=loss, manager=manager.RolloutManager.__ray_metadata__.modified_class)
    finally:
        mpu.destroy_model_parallel()
        dist.destroy_process_group()
        sys.path.remove(SOURCE)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("slime", "sglang", "wandb"):
                del sys.modules[name]


def arguments(values: dict[str, Any]) -> SimpleNamespace:
    """slime's flags for the embedded trainer's options."""
    asked = config(**values)
    return SimpleNamespace(
        advantage_estimator="gspo" if asked.algorithm == "gspo" else "grpo",
        rewards_normalization=True,
        grpo_std_normalization=asked.algorithm != "dr_grpo",
        normalize_advantages=False,
        calculate_per_token_loss=asked.reduction != "sample",
        eps_clip=asked.clip_low,
        eps_clip_high=asked.clip_high,
        eps_clip_c=asked.dual_clip,
        use_rollout_logprobs=asked.tis_clip is None,
        use_tis=asked.tis_clip is not None,
        tis_clip=asked.tis_clip,
        tis_clip_low=0,
        use_kl_loss=asked.kl_coef > 0,
        kl_loss_coef=asked.kl_coef,
        kl_loss_type=asked.kl_type,
        kl_coef=0,
        entropy_coef=0.0,
        loss_type="policy_loss",
        rollout_temperature=asked.temperature,
        rollout_top_p=1.0,
        log_probs_chunk_size=-1,
        use_unbiased_kl=False,
        use_opd=False,
        use_opsm=False,
        get_mismatch_metrics=False,
        allgather_cp=False,
        recompute_loss_function=False,
        custom_advantage_function_path=None,
        custom_tis_function_path=None,
    )


def normalised(slime: SimpleNamespace, args: SimpleNamespace, rewards: list[float], group_size: int) -> list[float]:
    """slime's own normalisation of the rewards of whole groups."""
    args.n_samples_per_prompt, args.rollout_batch_size = group_size, len(rewards) // group_size
    samples = [SimpleNamespace(get_reward_value=lambda _, reward=reward: reward) for reward in rewards]
    manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
    return slime.manager._post_process_rewards(manager, samples)[1]


def rewards_of(slime: SimpleNamespace, args: SimpleNamespace, groups: list[list[Trajectory]]) -> list[float]:
    """Normalised over the members that the environment did not fail, as agentrl does; those get 0."""
    found = []
    for group in groups:
        valid = [t.reward for t in group if t.failure is None]
        values = iter(normalised(slime, args, valid, len(valid)))
        found += [next(values) if t.failure is None else 0.0 for t in group]
    return found


def rollout_data(
    slime: SimpleNamespace, args: SimpleNamespace, groups: list[list[Trajectory]], models: Models
) -> dict[str, list[Any]]:
    """What slime's trainer holds of the episodes before it learns, by its names; a list has an entry an episode."""
    episodes = [t for group in groups for t in group]

    def response(model: torch.nn.Module) -> list[Tensor]:
        return [torch.tensor(log_probs(model, t.tokens)[t.prompt_length - 1 :]) for t in episodes]

    data: dict[str, list[Any]] = {
        "unconcat_tokens": [torch.tensor(t.tokens) for t in episodes],
        "total_lengths": [len(t.tokens) for t in episodes],
        "response_lengths": [t.segment.response_length for t in episodes],
        "loss_masks": [torch.tensor(t.loss_mask) for t in episodes],
        "rollout_mask_sums": [torch.tensor(sum(t.loss_mask)) for t in episodes],
        "rollout_log_probs": [torch.tensor(t.log_probs) for t in episodes],
        "rewards": rewards_of(slime, args, groups),
    }
    if args.use_tis:
        data["log_probs"] = response(models.before)
    if args.use_kl_loss:
        data["ref_log_probs"] = response(models.reference)
    slime.loss.compute_advantages_and_returns(args, data)
    return data


def learn(slime: SimpleNamespace, groups: list[list[Trajectory]], models: Models, values: dict[str, Any]) -> Found:
    """slime's loss and its gradient, over two micro-batches of the packed episodes."""
    args = arguments(values)
    data = rollout_data(slime, args, groups, models)
    episodes = [t for group in groups for t in group]
    models.now.zero_grad(set_to_none=True)
    total, tokens, logged = 0.0, 0, dict[str, float]()
    for part in range(MICRO_BATCHES):
        batch = {name: list(column[part::MICRO_BATCHES]) for name, column in data.items()}
        logits = packed_logits(models.now, batch["unconcat_tokens"])
        loss, normaliser, log = slime.loss.loss_function(args, batch, MICRO_BATCHES, len(episodes), logits)
        loss.backward()
        total, tokens = total + loss.item(), tokens + int(normaliser)
        for name, value in zip(log["keys"], log["values"][1:].tolist(), strict=True):
            logged[name] = logged.get(name, 0.0) + value
    # Megatron divides by the micro-batches, or a loss per token by all tokens.
    divisor = float(MICRO_BATCHES)
    if args.calculate_per_token_loss:
        trained = sum(sum(t.loss_mask) for t in episodes)
        divisor = len(episodes) * LENGTH if config(**values).reduction == "constant" else trained
    gradients = {name: p.grad / divisor for name, p in models.now.named_parameters()}
    models.now.zero_grad(set_to_none=True)
    return Found(total / divisor, gradients, logged, tokens, data["advantages"])


def packed_logits(model: torch.nn.Module, sequences: list[Tensor], multiple: int = 128) -> Tensor:
    """Logits [1, tokens, vocabulary] of sequences one behind the other, padded as slime's get_batch pads."""
    logits = torch.cat([model(input_ids=tokens[None]).logits[0] for tokens in sequences])
    return torch.nn.functional.pad(logits, (0, 0, 0, -len(logits) % multiple))[None]
