"""The training part of slime on a data-parallel rank: its batches, advantages and loss with a Megatron-Core model."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from types import SimpleNamespace
from typing import Any

import device
import torch
from megatron.core import mpu
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron_model import adam, bare, build_model, data_parallel, to_hugging_face
from torch import Tensor

# Keys that slime's training step needs in a batch (slime/backends/megatron_utils/model.py, train_one_step).
_KEYS = (
    "tokens",
    "total_lengths",
    "response_lengths",
    "loss_masks",
    "log_probs",
    "advantages",
    "returns",
    "rollout_log_probs",
    "rollout_mask_sums",
)


class Trainer:
    """Trains a model with Megatron's optimiser and slime's functions."""

    def __init__(self, slime: SimpleNamespace, args: Namespace, hf_model: Any, learning_rate: float) -> None:
        self.slime, self.args, self.hf = slime, args, hf_model.config
        with device.training():
            self.model = data_parallel(build_model(self.hf, hf_model.state_dict()))
            self.optimizer = adam(self.model, learning_rate)
        self.model.config.finalize_model_grads_func = finalize_model_grads
        self.model.config.grad_scale_func = self.optimizer.scale_loss

    def weights(self) -> dict[str, Tensor]:
        """The weights with the names and layout of Hugging Face."""
        found = {name: parameter.detach() for name, parameter in bare(self.model).named_parameters()}
        return to_hugging_face(found, self.hf)

    def train(self, share: dict[str, Any]) -> dict[str, Any]:
        """Learn from this rank's share of a rollout. Returns metrics, with a loss for each optimiser step."""
        with device.training():
            return self._train(on_device(share))

    def _train(self, data: dict[str, Any]) -> dict[str, Any]:
        data.update(self.log_probs(data))
        metrics = parity(data)
        self.slime.loss.compute_advantages_and_returns(self.args, data)
        iterators = self.slime.data.get_data_iterator(data)
        steps = [
            self._step(iterators, microbatches, batch)
            for microbatches, batch in zip(data["num_microbatches"], data["global_batch_sizes"], strict=True)
        ]
        metrics |= {name: [step[name] for step in steps] for name in steps[0]}
        return metrics

    @torch.no_grad()
    def log_probs(self, data: dict[str, Any]) -> dict[str, list[Tensor]]:
        """The log-probs of all response tokens under the present weights, as from slime's `forward_only`."""
        (iterator,) = self.slime.data.get_data_iterator(data)
        found: dict[int, Tensor] = {}
        for indices in data["micro_batch_indices"]:
            batch = self.slime.data.get_batch(iterator, _KEYS, self.args.data_pad_size_multiplier)
            _, result = self.slime.loss.get_log_probs_and_entropy(
                self._forward(self.model, batch),
                args=self.args,
                unconcat_tokens=batch["unconcat_tokens"],
                total_lengths=batch["total_lengths"],
                response_lengths=batch["response_lengths"],
            )
            found |= dict(zip(indices, result["log_probs"], strict=True))
        return {"log_probs": [found[index] for index in range(len(data["tokens"]))]}

    def _step(self, iterators: list[Any], microbatches: int, batch_size: int) -> dict[str, float]:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

        def forward(iterator: Any, model: Any) -> tuple[Tensor, Any]:
            batch = self.slime.data.get_batch(iterator, _KEYS, self.args.data_pad_size_multiplier)
            loss = partial(self.slime.loss.loss_function, self.args, batch, microbatches, batch_size)
            return self._forward(model, batch), loss

        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iterators,
            model=[self.model],
            num_microbatches=microbatches,
            seq_length=self.args.seq_length,
            micro_batch_size=self.args.micro_batch_size,
            forward_only=False,
        )
        updated, norm, _ = self.optimizer.step()
        assert updated, "the gradient is not finite"
        found = self.slime.reduce_metrics(
            losses,
            calculate_per_token_loss=self.args.calculate_per_token_loss,
            step_global_batch_size=batch_size,
            cp_size=1,
            dp_with_cp_group=mpu.get_data_parallel_group(with_context_parallel=True),
        )
        return {"loss": found["loss"], "clipped": found["pg_clipfrac"], "grad_norm": float(norm)}

    @staticmethod
    def _forward(model: Any, batch: dict[str, Any]) -> Tensor:
        return model(
            input_ids=batch["tokens"],
            position_ids=None,
            attention_mask=None,
            packed_seq_params=batch["packed_seq_params"],
        )


def on_device(share: dict[str, Any]) -> dict[str, Any]:
    """A rank's share as tensors on the device, as slime's actor prepares it (`process_rollout_data`,
    `_get_rollout_data`)."""
    here = device.here()
    data = {
        **share,
        "tokens": [tokens.to(here, torch.long) for tokens in share["tokens"]],
        "loss_masks": [mask.to(here, torch.int) for mask in share["loss_masks"]],
        "rollout_log_probs": [log_probs.to(here, torch.float) for log_probs in share["rollout_log_probs"]],
        "total_lengths": [share["total_lengths"][index] for index in share["partition"]],
    }
    if "rollout_mask_sums" in share:
        data["rollout_mask_sums"] = share["rollout_mask_sums"].to(here, torch.float)
    return data


def parity(data: dict[str, Any]) -> dict[str, Any]:
    """The differences between the log-probs of engine and trainer, over the trained tokens."""
    gaps = [
        (ours - engines)[mask.bool()].abs()
        for ours, engines, mask in zip(data["log_probs"], data["rollout_log_probs"], data["loss_masks"], strict=True)
    ]
    gap = torch.cat(gaps)
    return {"compared": len(gap), "gap_sum": gap.sum().item(), "gap_max": max(gap.tolist(), default=0.0)}
